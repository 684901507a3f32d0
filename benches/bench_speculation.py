"""Speculation on the CPU: how much sooner the demo model has answered, and never later.

Workloads: ``copy`` (say a phrase again; the n-gram proposer finds it in the prompt), ``json``
(fields of a text under a schema; the grammar forces what is between the values) and ``chat``
(sampled; the demo model's sibling drafts). So many clients ask one question after the other; the
same questions go to an engine with the proposers and to one without, in turn, and the speedup is
the median over such pairs, ``spread`` their quartiles. Prompts are new in every pair, so that both
prefill them. In the ``control`` both engines have no proposers: so far from 1 lies chance.

``cpu`` is the same in CPU time of this process, which others on the machine disturb less.
``expected`` is what acceptance and cost allow: tokens per row and step, over the time of a step
with so many drafts and of drafting them, against that of a step without. Those times are the
model's alone, measured first; the engine's own are in both steps.

    python benches/bench_speculation.py [--quick] [--json PATH]      (- is standard output)
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import statistics
import sys
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the engine sets it before torch

import numpy as np

from pyengine import AsyncEngine, EngineConfig, SamplingParams
from pyengine._core import CpuKernels
from pyengine.config import Proposer
from pyengine.demo.data import documents
from pyengine.demo.skills.fields import extraction
from pyengine.demo.skills.prose import stdlib_words
from pyengine.grammar import Grammar, json_schema
from pyengine.model.cpu_model import CpuModel
from pyengine.model.shape import describe, make_layout

CONCURRENCY = (1, 4, 16, 64)
MAX_DRAFT = 8
SCHEMAS = 40  # questions whose schemas are asked for
LONG = 120  # characters of an answer
CONTEXT = 64  # tokens before those of a step whose time is measured


@dataclass(frozen=True)
class Question:
    """What a client asks."""

    prompt: str
    params: SamplingParams
    grammar: Grammar | None = None


@dataclass(frozen=True)
class Case:
    """A workload and who drafts in it: nobody in the control."""

    workload: str
    proposers: tuple[Proposer, ...]

    @property
    def name(self) -> str:
        """The proposers, joined."""
        return "+".join(self.proposers) or "control"


CASES = (
    Case("json", ()),
    Case("copy", ("ngram",)),
    Case("json", ("forced",)),
    Case("json", ("ngram",)),
    Case("json", ("forced", "ngram")),
    Case("chat", ("draft_model",)),
)


def asked(text: str) -> str:
    return f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"


def copies(key: str) -> Iterator[Question]:
    """Phrases as long as the demo model can say again."""
    rng, words = random.Random(f"copy {key}"), stdlib_words()
    while True:
        phrase = " ".join(rng.choice(words) for _ in range(10))
        yield Question(
            asked(f"Repeat exactly: {phrase}"), SamplingParams(temperature=0, max_tokens=80)
        )


def schema_of(answer: str) -> dict[str, Any]:
    """The schema of the keys of a JSON object, in their order."""
    kinds = {int: "integer", float: "number", str: "string", bool: "boolean"}
    wanted = json.loads(answer)
    return {
        "type": "object",
        "properties": {key: {"type": kinds[type(value)]} for key, value in wanted.items()},
        "required": list(wanted),
        "additionalProperties": False,
    }


def extractions(key: str) -> Iterator[Question]:
    """Fields of a text, under a schema of just these: few schemas, so that all are compiled."""
    rng = random.Random("json")
    answers = [extraction(rng).expect for _ in range(SCHEMAS)]
    grammars = {tuple(json.loads(answer)): json_schema(schema_of(answer)) for answer in answers}
    params = SamplingParams(temperature=0, max_tokens=120)
    for grammar in grammars.values():
        yield Question(asked("Compile this."), params, grammar)
    rng = random.Random(f"json {key}")
    while True:
        exchange = extraction(rng)
        grammar = grammars.get(tuple(json.loads(exchange.expect)))
        if grammar is not None:
            yield Question(asked(exchange.turns[-2].text), params, grammar)


def chats(key: str) -> Iterator[Question]:
    """Questions with answers of some length, as chats have, sampled with some variety."""
    first = zlib.crc32(key.encode())
    for index in itertools.count(first):
        for seed, document in enumerate(documents(11, index, 200)):
            last = max(at for at, (_, said) in enumerate(document) if said)
            prompt = "".join(text for text, _ in document[:last])
            if 0 < len(prompt) < 800 and len(document[last][0]) > LONG:
                yield Question(prompt, SamplingParams(seed=seed, temperature=0.7, max_tokens=150))


WORKLOADS = {"copy": copies, "json": extractions, "chat": chats}


def step_times(quick: bool) -> dict[str, dict[int, dict[int, float]]]:
    """Microseconds of a step, sampling counted in: by model, rows, and tokens of each row."""
    config = EngineConfig(draft_model="demo", mode="server", max_draft=MAX_DRAFT)
    shape = describe(config)
    assert shape.draft is not None
    kernels, layout = CpuKernels(1), make_layout(config, shape.info)
    times: dict[str, dict[int, dict[int, float]]] = {}
    for name, of in (("model", shape), ("draft", shape.draft)):
        model = CpuModel(of, layout, kernels)
        times[name] = {}
        for rows in CONCURRENCY:
            each = (1, 2, 3, 5, 9) if name == "model" else (1,)
            repeats = max(5, (200 if quick else 600) // rows)
            times[name][rows] = {count: step_time(model, rows, count, repeats) for count in each}
    return times


def step_time(model: CpuModel, rows: int, each: int, repeats: int) -> float:
    """Microseconds of a step of ``rows`` sequences with ``each`` tokens; the lower quartile."""
    step, tokens, block = model.buffers, rows * each, 16
    pages = -(-(CONTEXT + each) // block)
    places = np.arange(CONTEXT, CONTEXT + each)
    step.header[:] = 0
    step.header[[0, 1, 2, 9]] = rows, tokens, rows, tokens
    step.token_ids[:tokens] = np.arange(tokens) % 1000 + 300
    step.positions[:tokens] = np.tile(places, rows)
    step.page_indices[: rows * pages] = np.arange(rows * pages)
    cells = places % block + np.arange(CONTEXT // block, pages).repeat(block)[:each] * block
    step.slot_mapping[:tokens] = (cells + np.arange(rows)[:, None] * pages * block).ravel()
    step.query_start[: rows + 1] = np.arange(rows + 1) * each
    step.page_indptr[: rows + 1] = np.arange(rows + 1) * pages
    step.kv_length[:rows] = CONTEXT + each
    step.temperature[:rows] = 0
    step.logit_start[: rows + 1] = np.arange(rows + 1) * each
    step.logit_row[:tokens] = np.arange(rows).repeat(each)
    step.logit_token[:tokens] = np.arange(tokens)
    step.mask_row[:tokens] = -1
    times = []
    for _ in range(repeats):
        start = perf_counter()
        model.forward()
        model.choose()
        model.sampler.verify(rows)
        times.append((perf_counter() - start) * 1e6)
    return statistics.quantiles(times, n=4)[0]


@dataclass
class Spent:
    """What answers took: seconds, CPU seconds of this process; their tokens, and drafts in them."""

    wall: float = 0.0
    cpu: float = 0.0
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0


async def ask(engine: AsyncEngine, questions: list[Question], clients: int) -> Spent:
    """So many clients ask all the questions."""
    left, spent = iter(questions), Spent()

    async def client() -> None:
        for question in left:
            answer = await engine.generate(
                question.prompt, question.params, grammar=question.grammar
            )
            spent.tokens += answer.usage.completion_tokens
            spent.accepted += answer.usage.accepted_drafts
            spent.rejected += answer.usage.rejected_drafts

    start, worked = perf_counter(), process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    spent.wall, spent.cpu = perf_counter() - start, process_time() - worked
    return spent


def expected(
    times: dict[str, dict[int, dict[int, float]]], clients: int, drafts: float, taken: float
) -> float:
    """The speedup with ``drafts`` per row and step, and ``taken`` tokens: what the costs allow."""
    model = times["model"][clients]
    counts = sorted(model)
    step = float(np.interp(1 + drafts, counts, [model[count] for count in counts]))
    return taken * model[1] / step


async def run_case(
    case: Case, clients: int, engines: dict[str, AsyncEngine], pairs: int, budget_s: float
) -> dict[str, Any]:
    """One row of the table: ``pairs`` times the same questions to both engines."""
    questions = WORKLOADS[case.workload](f"{case.name} {clients}")
    with_drafts, without = engines[case.name], engines["none"]
    # As many as take a share of the budget, found out while both warm up.
    warm = list(itertools.islice(questions, max(SCHEMAS, 2 * clients)))
    took = sum([(await ask(engine, warm, clients)).wall for engine in (without, with_drafts)])
    each = max(clients, round(len(warm) * budget_s / (pairs + 1) / took))
    await ask(with_drafts, list(itertools.islice(questions, each)), clients)
    walls, cpus, total = [], [], Spent()
    for pair in range(pairs):
        batch = list(itertools.islice(questions, each))
        order = (without, with_drafts) if pair % 2 else (with_drafts, without)
        spent = {engine: await ask(engine, batch, clients) for engine in order}
        drafted = spent[with_drafts]
        walls.append(spent[without].wall / drafted.wall)
        cpus.append(spent[without].cpu / drafted.cpu)
        total.tokens += drafted.tokens
        total.accepted += drafted.accepted
        total.rejected += drafted.rejected
    row_steps = max(1, total.tokens - total.accepted)
    return {
        "workload": case.workload,
        "proposer": case.name,
        "concurrency": clients,
        "speedup": statistics.median(walls),
        "spread": statistics.quantiles(walls, n=4)[::2],
        "cpu_speedup": statistics.median(cpus),
        "tokens_per_step": total.tokens / row_steps,
        "accepted": total.accepted,
        "drafted": total.accepted + total.rejected,
        "drafts_per_step": (total.accepted + total.rejected) / row_steps,
    }


async def bench(quick: bool) -> dict[str, Any]:
    times = step_times(quick)
    pairs, budget_s = (5, 1.1) if quick else (21, 8.0)
    configs: dict[str, dict[str, Any]] = {"none": {"speculation": ()}}
    for case in CASES:
        configs[case.name] = {"speculation": case.proposers}
    configs["draft_model"]["draft_model"] = "demo"
    engines = {
        # One engine answers in all cases: with a prefix cache it would find more than the others.
        name: AsyncEngine(mode="server", max_draft=MAX_DRAFT, prefix_cache=False, **config)
        for name, config in configs.items()
    }
    runs = []
    try:
        for engine in engines.values():
            await engine.start()
        for case in CASES:
            for clients in CONCURRENCY:
                run = await run_case(case, clients, engines, pairs, budget_s)
                drafts, taken = run["drafts_per_step"], run["tokens_per_step"]
                run["expected"] = expected(times, clients, drafts, taken)
                if case.proposers == ("draft_model",):
                    step = times["model"][clients][1] * taken / run["expected"]
                    step += drafts * times["draft"][clients][1]
                    run["expected"] = times["model"][clients][1] * taken / step
                runs.append(run)
    finally:
        for engine in engines.values():
            await engine.close()
    return {"step_us": times, "runs": runs}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="within a minute, with more noise")
    parser.add_argument("--json", metavar="PATH", help="write the figures there; - prints them")
    arguments = parser.parse_args()
    result = asyncio.run(bench(arguments.quick))
    if arguments.json == "-":
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    print("a step takes (µs), by sequences and tokens of each:")
    for name, by_rows in result["step_us"].items():
        for rows, by_count in by_rows.items():
            steps = "  ".join(f"{count}: {time:.0f}" for count, time in by_count.items())
            print(f"  {name:6} {rows:3}   {steps}")
    print(
        "workload proposer       clients  speedup   quartiles     cpu  expected"
        "  tokens/step  right/drafted"
    )
    for run in result["runs"]:
        print(
            f"{run['workload']:8} {run['proposer']:14} {run['concurrency']:7}"
            f" {run['speedup']:8.3f} {run['spread'][0]:5.2f}..{run['spread'][1]:.2f}"
            f" {run['cpu_speedup']:7.2f} {run['expected']:9.2f}"
            f" {run['tokens_per_step']:12.2f}  {run['accepted']}/{run['drafted']}"
        )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

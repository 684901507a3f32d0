"""Speculation on the CPU: how much sooner the demo model has answered, and never later.

Workloads: ``copy`` (say a phrase again; the n-gram proposer finds it in the prompt), ``json``
(fields of a text under a schema; the grammar forces what is between the values) and ``chat``
(sampled; the demo model's sibling drafts). Each client asks one question after the other; the
same questions go to an engine with the proposers and to one without, in short turns. They are the
same for all proposers of a workload, so that proposers together can be held against each alone.

A round is several turns of each, and gives one ratio of times; ``speedup`` is what lies behind the
ratios of all rounds, ``low`` and ``high`` its 95% interval (``benches/paired.py`` says how). Where
its memory happens to lie makes an engine faster or slower by a percent or three, so the rounds are
those of several pairs of engines. In ``control`` both have no proposers: so far from 1 lies chance.
``cpu_speedup`` is the same in CPU time of this process, which others on the machine disturb less,
and ``total`` the plain quotient of all seconds.

``expected`` is what acceptance and cost allow: tokens per row and step, over the time of a step
with each number of drafts and of drafting them, against that of a step without; and prompts, which
take as long as ever, and the draft model's besides. Those times are the models' alone, measured
first; the engine's own are in both.

    python benches/bench_speculation.py [--quick] [--json PATH]      (- is standard output)
"""

import argparse
import asyncio
import itertools
import json
import os
import statistics
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # as the engine sets it before torch

from benches.paired import ratio_of, turns
from benches.speculation_costs import expected, step_times
from benches.speculation_workloads import WORKLOADS, Question, asked, schemas
from pyengine import AsyncEngine, SamplingParams
from pyengine.settings.choices import Proposer

CONCURRENCY = (1, 4, 16, 64)
# Of the time, by clients: with many a turn takes long.
WEIGHTS = {1: 1.0, 4: 1.5, 16: 2.0, 64: 2.5}
QUICK_S, WHOLE_S = 42.0, 540.0
# Pairs of engines, and rounds with each.
QUICK_PAIRS, WHOLE_PAIRS = (1, 8), (6, 4)
NEVER_BELOW = 0.97
MAX_DRAFT = 8


@dataclass(frozen=True)
class Case:
    """A workload and its proposers; the control has none."""

    workload: str
    proposers: tuple[Proposer, ...]

    @property
    def name(self) -> str:
        """The proposers, joined."""
        return "+".join(self.proposers) or "control"


CASES = (
    Case("copy", ("ngram",)),
    Case("chat", ("draft_model",)),
    Case("json", ("forced",)),
    Case("json", ("ngram",)),
    Case("json", ("forced", "ngram")),
    Case("json", ()),
)


def points(quick: bool) -> list[tuple[Case, int]]:
    """Each case with each number of clients; cases with many clients first: they take long."""
    few = CONCURRENCY[:1] if quick else CONCURRENCY
    return [
        (case, clients)
        for clients in reversed(CONCURRENCY)
        for case in CASES
        if case.workload != "json" or clients in few
    ]


@dataclass
class Spent:
    """What answers took: seconds, CPU seconds of this process; and what was in them, in tokens."""

    wall: float = 0.0
    cpu: float = 0.0
    prompts: int = 0
    tokens: int = 0
    accepted: int = 0
    rejected: int = 0

    def add(self, other: "Spent") -> None:
        """Take in what others took."""
        self.wall += other.wall
        self.cpu += other.cpu
        self.prompts += other.prompts
        self.tokens += other.tokens
        self.accepted += other.accepted
        self.rejected += other.rejected


async def ask(engine: AsyncEngine, questions: list[Question], clients: int) -> Spent:
    """Let a number of clients ask all the questions."""
    left, spent = iter(questions), Spent()

    async def client() -> None:
        for question in left:
            answer = await engine.generate(
                question.prompt, question.params, grammar=question.grammar
            )
            spent.prompts += answer.usage.prompt_tokens
            spent.tokens += answer.usage.completion_tokens
            spent.accepted += answer.usage.accepted_drafts
            spent.rejected += answer.usage.rejected_drafts

    start, worked = perf_counter(), process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    spent.wall, spent.cpu = perf_counter() - start, process_time() - worked
    return spent


@asynccontextmanager
async def engines(case: Case) -> AsyncIterator[tuple[AsyncEngine, AsyncEngine]]:
    """One without proposers and one with those of the case, which know the grammars."""
    # One engine answers all rounds: with a prefix cache it would find more and more.
    common: dict[str, Any] = {"mode": "server", "max_draft": MAX_DRAFT, "prefix_cache": False}
    drafted = AsyncEngine(
        speculation=case.proposers,
        draft_model="demo" if "draft_model" in case.proposers else None,
        **common,
    )
    async with AsyncEngine(speculation=(), **common) as plain, drafted:
        if case.workload == "json":
            short = SamplingParams(temperature=0, max_tokens=2)
            known = [Question(asked("Hi"), short, grammar) for grammar in schemas().values()]
            for engine in (plain, drafted):
                await ask(engine, known, 16)
        yield plain, drafted


def split(budget_s: float, question_s: float, clients: int, rounds: int) -> tuple[int, int]:
    """Questions of a turn, and pairs of turns in a round; a question to both takes so long.

    A turn has at least one question for each client, and two if there is time: when none is left
    fewer and fewer clients are answered. Where there is more time a round gets more turns.
    """
    each = int(budget_s / rounds / question_s)
    turn = min(max(4, clients, each), max(4, 2 * clients))
    return turn, max(1, each // turn)


async def run_case(
    case: Case, clients: int, pairs: int, rounds: int, budget_s: float
) -> dict[str, Any]:
    """Measures one row of the table, in about ``budget_s``: rounds, each of ``pairs`` pairs."""
    questions = WORKLOADS[case.workload](str(clients))
    spent: list[list[Spent]] = []
    start = perf_counter()
    for pair in range(pairs):
        async with engines(case) as both:
            end = start + budget_s * (pair + 1) / pairs
            warm = list(itertools.islice(questions, max(24, 2 * clients)))
            took = sum([(await ask(engine, warm, clients)).wall for engine in both])
            turn, each = split(end - perf_counter(), took / len(warm), clients, rounds)
            here = [[Spent(), Spent()] for _ in range(rounds)]
            for at, order in enumerate(turns(rounds * each)):
                batch = list(itertools.islice(questions, turn))
                for which in order:
                    here[at // each][which].add(await ask(both[which], batch, clients))
            spent += here
    return row(case, clients, spent)


def row(case: Case, clients: int, spent: list[list[Spent]]) -> dict[str, Any]:
    """What rounds came to; of each is given what was spent without drafts, and with them."""
    wall = ratio_of([without.wall / drafted.wall for without, drafted in spent])
    cpu = ratio_of([without.cpu / drafted.cpu for without, drafted in spent])
    sums = [Spent(), Spent()]
    for pair in spent:
        for total, part in zip(sums, pair, strict=True):
            total.add(part)
    drafted = sums[1]
    row_steps = max(1, drafted.tokens - drafted.accepted)
    return {
        "workload": case.workload,
        "proposer": case.name,
        "concurrency": clients,
        "speedup": wall.value,
        "low": wall.low,
        "high": wall.high,
        "cpu_speedup": cpu.value,
        "cpu_low": cpu.low,
        "cpu_high": cpu.high,
        "total": sums[0].wall / drafted.wall,
        "rounds": len(spent),
        "prompts_per_token": drafted.prompts / max(1, drafted.tokens),
        "tokens_per_step": drafted.tokens / row_steps,
        "accepted": drafted.accepted,
        "drafted": drafted.accepted + drafted.rejected,
        "drafts_per_step": (drafted.accepted + drafted.rejected) / row_steps,
    }


def noise_of(runs: list[dict[str, Any]], control: list[dict[str, Any]]) -> dict[str, Any]:
    """How far chance goes, and the runs that are slower than none for certain.

    ``control`` is the range of runs without proposers, ``within`` how far a run's interval reaches
    to either side (the median), ``below`` the runs whose whole interval is below NEVER_BELOW.
    """
    at = [run["speedup"] for run in control]
    keys = "workload", "proposer", "concurrency", "speedup", "low", "high"
    return {
        "control": [min(at), max(at)],
        "within": statistics.median((run["high"] / run["low"]) ** 0.5 - 1 for run in runs),
        "below": [{key: run[key] for key in keys} for run in runs if run["high"] < NEVER_BELOW],
    }


async def bench(quick: bool) -> dict[str, Any]:
    end = perf_counter() + (QUICK_S if quick else WHOLE_S)
    times = step_times(CONCURRENCY, MAX_DRAFT, quick)
    runs = []
    left = sum(WEIGHTS[clients] for _, clients in points(quick))
    for case, clients in points(quick):
        share = (end - perf_counter()) * WEIGHTS[clients] / left
        left -= WEIGHTS[clients]
        run = await run_case(case, clients, *(QUICK_PAIRS if quick else WHOLE_PAIRS), share)
        run["expected"] = expected(times, run, "draft_model" in case.proposers)
        runs.append(run)
    order = [case.workload + case.name for case in CASES]
    runs.sort(key=lambda r: (order.index(r["workload"] + r["proposer"]), r["concurrency"]))
    control = [run for run in runs if run["proposer"] == "control"]
    runs = [run for run in runs if run["proposer"] != "control"]
    return {"step_us": times, "runs": runs, "control": control, "noise": noise_of(runs, control)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--quick", action="store_true", help="within 50 s, with more noise")
    parser.add_argument("--json", metavar="PATH", help="write the figures there; - prints them")
    arguments = parser.parse_args()
    result = asyncio.run(bench(arguments.quick))
    if arguments.json == "-":
        json.dump(result, sys.stdout, indent=2)
        print()
        return
    print("a step takes (µs), by sequences and tokens of each; -: a prompt")
    for name, by_rows in result["step_us"].items():
        for rows, by_count in sorted(by_rows.items()):
            steps = "  ".join(f"{count}: {time:.0f}" for count, time in by_count.items())
            print(f"  {name:6} {rows or '-':3}   {steps}")
    print(
        "workload proposer       clients  speedup  95% interval     cpu  95% interval   total"
        "  expected  tokens/step  right/drafted"
    )
    for run in result["runs"] + result["control"]:
        print(
            f"{run['workload']:8} {run['proposer']:14} {run['concurrency']:7}"
            f" {run['speedup']:8.3f}  {run['low']:.3f}..{run['high']:.3f}"
            f" {run['cpu_speedup']:7.3f}  {run['cpu_low']:.3f}..{run['cpu_high']:.3f}"
            f" {run['total']:7.3f} {run['expected']:9.2f}"
            f" {run['tokens_per_step']:12.2f}  {run['accepted']}/{run['drafted']}"
        )
    noise = result["noise"]
    print(f"noise: none against none is at {' to '.join(f'{at:.3f}' for at in noise['control'])};")
    print(f"a run's interval reaches {noise['within']:.1%} to either side (the median of all runs)")
    below = [f"{run['workload']} {run['proposer']} {run['concurrency']}" for run in noise["below"]]
    print(f"below {NEVER_BELOW} with its whole interval: {', '.join(below) or 'none'}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps(result, indent=2) + "\n")


if __name__ == "__main__":
    main()

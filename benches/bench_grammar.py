"""Grammars: how many schemas are kept, what compiling costs, what a mask costs; beside others.

The suite is the JSON-Schema-Test-Suite (draft 2020-12, required part): `wrong` counts instances
that a schema allows and the masks stop, or that it forbids and they let pass, and must be 0. The
rest compiles the same choices, regexes and schemas (`grammar_workloads.py`) with each backend and
package, with the 151k entries of Qwen2, and takes a text of each token by token: *cold* right after
the compilation, *warm* the same text once more. CPU time, so that a busy machine does not blur it:
milliseconds a compilation, microseconds a mask. Memory is what the process has grown by while all
compiled grammars are held.

Once a request has its grammar, a thread of the engine's compiler that has nothing else to do makes
the masks that texts come to first. So this engine is measured twice: ``pyengine`` as compiled, and
``prepared`` with the time of that thread beside, which is not within that of the compilation.
Grammars are compiled anew each time, and share no mask with those before them.

``--beside`` measures something else: how much longer a stream of the engine takes for a token while
forty heavy grammars are compiled at once than while nothing is. ``--alternatives`` asks for one
answer, and for 64 alternatives of it: CPU time of the whole engine, and masks made and found.
``--certain`` counts the tokens that a grammar allows alone. ``--tools`` compiles 10 to 1,000 tools.
"""

import argparse
import asyncio
import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from time import monotonic, process_time, thread_time
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benches import (
    grammar_alternatives,
    grammar_certain,
    grammar_streams,
    grammar_suite,
    grammar_tools,
)
from benches.figures import json_option, write_json
from benches.grammar_peers import PEERS, AbsentError, Peer, expect, installed
from benches.grammar_workloads import Workload, workloads
from pyengine._core import CompiledGrammar, GrammarContext, Vocabulary, compile_grammar
from tools.reference_data import MissingDataError, reference_file

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
# A package that takes longer for all of its workloads leaves the rest out.
PATIENCE_S = 15.0
Figures = dict[str, Any]


class Engine:
    """This engine, with the face of a peer."""

    def __init__(self, context: GrammarContext, prepared: bool) -> None:
        self.name = "pyengine, prepared" if prepared else "pyengine"
        self.context = context
        self.prepared = prepared
        self.mask = np.zeros(context.mask_words, dtype=np.uint32)

    def compile(self, work: Workload) -> CompiledGrammar:
        """By a description of its kind."""
        key = {"json_schema": "schema", "choice": "choices", "regex": "pattern"}[work.kind]
        description = {"kind": work.kind, key: work.spec}
        return compile_grammar(self.context, json.dumps(description).encode())

    def prepare(self, compiled: CompiledGrammar) -> float:
        """Seconds that the compiler's idle thread takes once the grammar is compiled."""
        start = thread_time()
        if self.prepared:
            compiled.prepare()
        return thread_time() - start

    def masks(self, compiled: CompiledGrammar, ids: list[int]) -> Iterator[float]:
        """Seconds of each mask."""
        state = compiled.start()
        for token in ids:
            start = thread_time()
            state.fill_mask(self.mask)
            yield thread_time() - start
            expect(state.advance(token))


def resident_mb() -> float:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def spread(seconds: Iterable[float], unit: str) -> dict[str, float]:
    """The mean, the median and the 99th percentile; `unit` is `compile_ms`, `prepare_ms`, `cold_us`
    or `warm_us`.
    """
    scale = 1e3 if unit.endswith("ms") else 1e6
    values = np.fromiter(seconds, dtype=np.float64) * scale
    shares = {f"{unit}_p{share}": float(np.percentile(values, share)) for share in (50, 99)}
    together = {f"{unit}_mean": float(values.mean()), **shares}
    return {name: round(value, 3) for name, value in together.items()}


class Samples:
    """Times, by the group of the workload."""

    def __init__(self) -> None:
        self.compile: dict[str, list[float]] = {}
        self.prepare: dict[str, list[float]] = {}
        self.cold: dict[str, list[float]] = {}
        self.warm: dict[str, list[float]] = {}

    def take(self, peer: Any, work: Workload, compiled: Any, ids: list[int]) -> None:
        """The masks of a text under a grammar that was just compiled, and once more."""
        if isinstance(peer, Engine):
            self.prepare.setdefault(work.group, []).append(peer.prepare(compiled))
        self.cold.setdefault(work.group, []).extend(peer.masks(compiled, ids))
        self.warm.setdefault(work.group, []).extend(peer.masks(compiled, ids))

    def figures(self) -> Figures:
        """Of all together, and of each group."""
        out: Figures = {}
        for unit, times in (
            ("compile_ms", self.compile),
            ("prepare_ms", self.prepare),
            ("cold_us", self.cold),
            ("warm_us", self.warm),
        ):
            together = [value for values in times.values() for value in values]
            out |= spread(together, unit) if together else {}
            for group, values in times.items():
                out.setdefault("groups", {}).setdefault(group, {}).update(spread(values, unit))
        return out


def measure(peer: Peer, works: list[Workload], tokenizer: Tokenizer) -> dict[str, Figures]:
    """Figures by backend: a package is one, this engine has two."""
    samples: dict[str, Samples] = {}
    memory: dict[str, float] = {}
    held, left_out = [], []
    deadline = monotonic() + PATIENCE_S
    for work in works:
        if monotonic() > deadline:
            left_out.append(work.name)
            continue
        ids = tokenizer.encode(work.text, add_special_tokens=False).ids
        before = resident_mb()
        for turn in range(ROUNDS):
            start = process_time()
            try:
                compiled = peer.compile(work)
            except (ValueError, RuntimeError) as error:
                left_out.append(f"{work.name}: {str(error)[:80]}")
                break
            took = process_time() - start
            own = getattr(compiled, "backend", None)
            name = f"{peer.name}.{own}" if own else peer.name
            into = samples.setdefault(name, Samples())
            into.compile.setdefault(work.group, []).append(took)
            into.take(peer, work, compiled, ids)
            if turn == 0:
                held.append(compiled)
                memory[name] = memory.get(name, 0.0) + max(0.0, resident_mb() - before)
            if monotonic() > deadline:
                break
    return {
        name: {**of.figures(), "memory_mb": round(memory[name], 1), "left_out": left_out}
        for name, of in samples.items()
    }


def backends(
    engines: list[Engine], tokenizer: Tokenizer, vocabulary: list[bytes], end: int
) -> Figures:
    works = workloads()
    figures: Figures = {}
    for engine in engines:
        # The first masks of a process pay for pages and caches that the others find.
        for work in works[-2:]:
            list(engine.masks(engine.compile(work), tokenizer.encode(work.text).ids))
        figures |= measure(engine, works, tokenizer)
    for make in PEERS:
        try:
            peer = make(tokenizer, vocabulary, end)
        except AbsentError:
            figures[make.name] = "absent"
            continue
        for name, of in measure(peer, works, tokenizer).items():
            figures[name] = {"version": installed(name), **of}
    return figures


def together(engine: Engine, tokenizer: Tokenizer) -> Figures:
    """The engine as a user sees it, with the backend that it selects."""
    everything = Samples()
    for work in workloads():
        ids = tokenizer.encode(work.text, add_special_tokens=False).ids
        for _ in range(ROUNDS):
            start = process_time()
            compiled = engine.compile(work)
            everything.compile.setdefault(work.group, []).append(process_time() - start)
            everything.take(engine, work, compiled, ids)
    return everything.figures()


def report(figures: Figures, file: Any) -> None:
    suite = figures["suite"]
    print(
        f"suite: {suite['accepted']} of {suite['schemas']} schemas accepted, {suite['wrong']} "
        f"instances wrong; peers together keep {suite['right_of_peers_together']}, "
        f"each: {suite['peers']}",
        file=file,
    )
    parts = ("mean", "p50", "p99")
    print(
        f"{'':24}{'compile ms':^24}|{'cold mask us':^24}|{'warm mask us':^24}|     MiB", file=file
    )
    print(f"{'':24}{(' '.join(f'{part:>7}' for part in parts) + ' |') * 3}", file=file)
    for name, row in {**figures["engine"], **figures["backends"]}.items():
        if isinstance(row, str):
            print(f"{name:24}{row}", file=file)
            continue
        for group, of in {"": row, **row.get("groups", {})}.items():
            cells = (
                " ".join(f"{of.get(f'{unit}_{part}', float('nan')):7.1f}" for part in parts) + " |"
                for unit in ("compile_ms", "cold_us", "warm_us")
            )
            label = f"  {group}" if group else name
            size = "" if group else f"{row.get('memory_mb', float('nan')):7.1f}"
            print(f"{label:24}{''.join(cells)}{size}", file=file)
        if "prepare_ms_p50" in row:
            median, most = row["prepare_ms_p50"], row["prepare_ms_p99"]
            print(f"{'':24}preparing takes {median} ms, p99 {most} ms", file=file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--beside", action="store_true", help="streams beside compilations")
    parser.add_argument("--alternatives", action="store_true", help="64 alternatives of one answer")
    parser.add_argument("--certain", action="store_true", help="tokens that may come alone")
    parser.add_argument("--tools", action="store_true", help="10 to 1,000 tools of an agent")
    arguments = parser.parse_args()
    if arguments.alternatives:
        write_json(asyncio.run(grammar_alternatives.figures()), arguments.json or "-")
        return
    if arguments.beside:
        beside = asyncio.run(grammar_streams.figures())
        print(grammar_streams.line(beside), file=sys.stderr)
        write_json(beside, arguments.json)
        return
    try:
        source = reference_file("tokenizers/qwen2.json").read_text(encoding="utf-8")
    except MissingDataError as error:
        sys.exit(str(error))
    tokenizer = Tokenizer.from_str(source)
    end = tokenizer.get_vocab()["<|im_end|>"]
    known = Vocabulary.from_tokenizer_json(source)
    vocabulary = [known.token_bytes(token) for token in range(len(known))]
    context = GrammarContext.from_tokenizer_json(source, [end], len(vocabulary))
    context.load()
    if arguments.certain:
        write_json(grammar_certain.figures(context, tokenizer), arguments.json or "-")
        return
    if arguments.tools:
        write_json(grammar_tools.figures(context), arguments.json or "-")
        return
    engines = [Engine(context, prepared) for prepared in (True, False)]
    figures: Figures = {"vocabulary": len(vocabulary)}
    suite = grammar_suite.figures(
        ROOT / "tests" / "data" / "json-schema-test-suite",
        grammar_suite.engine(context, source, end),
    )
    figures["suite"] = suite
    figures["backends"] = backends(engines, tokenizer, vocabulary, end)
    figures["engine"] = {engine.name: together(engine, tokenizer) for engine in engines}
    free = write_json(figures, arguments.json)
    report(figures, sys.stdout if free else sys.stderr)


if __name__ == "__main__":
    main()

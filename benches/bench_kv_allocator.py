"""Price of a prefix match, an insert and a block, beside a dict of chained block hashes.

Prompts of 2,048 tokens in trees of 10, 1,000 and 10,000 of them. Each verb is timed inside Rust
(``time_requests``), as the planner pays it.
The peer is plain Python: a dict from the hash of a block and all before it to the block, and a
queue of blocks that no sequence holds, oldest first. Figures are medians, in microseconds.

    python benches/bench_kv_allocator.py [--json PATH]      (- is standard output)
"""

import argparse
from collections import OrderedDict
from collections.abc import Callable, Iterable
from statistics import median
from time import perf_counter_ns
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benches.figures import json_option, write_json
from pyengine._core import KvAllocator, time_requests

BLOCK = 16
LENGTH = 2048
BLOCKS = LENGTH // BLOCK
TREES = (10, 1_000, 10_000)
SAMPLES = 500
PEER_SAMPLES = 100
VERBS = ("match", "allocate", "insert", "release")

Timings = dict[str, list[int]]


class HashedBlocks:
    """The peer: prefix caching by chained block hashes, as plain Python has it."""

    def __init__(self, num_blocks: int) -> None:
        self.holds = [0] * num_blocks
        self.hash_of: list[int | None] = [None] * num_blocks
        self.block_of: dict[int, int] = {}
        self.unheld = OrderedDict.fromkeys(range(num_blocks))

    def hashes(self, tokens: list[int]) -> Iterable[int]:
        """Each full block, named by its tokens and all before it."""
        parent = 0
        for start in range(0, len(tokens) - BLOCK + 1, BLOCK):
            parent = hash((parent, *tokens[start : start + BLOCK]))
            yield parent

    def match(self, tokens: list[int]) -> list[int]:
        """Hold the blocks of the longest known prefix."""
        blocks = []
        for key in self.hashes(tokens):
            block = self.block_of.get(key)
            if block is None:
                break
            if self.holds[block] == 0:
                del self.unheld[block]
            self.holds[block] += 1
            blocks.append(block)
        return blocks

    def allocate(self, count: int) -> list[int]:
        """Hold the ``count`` blocks that have been unheld for the longest time."""
        if count > len(self.unheld):
            raise MemoryError
        blocks = []
        for _ in range(count):
            block, _ = self.unheld.popitem(last=False)
            key = self.hash_of[block]
            if key is not None:
                del self.block_of[key]
                self.hash_of[block] = None
            self.holds[block] = 1
            blocks.append(block)
        return blocks

    def insert(self, tokens: list[int], blocks: list[int]) -> None:
        """Remember the full blocks."""
        for key, block in zip(self.hashes(tokens), blocks, strict=False):
            if key not in self.block_of:
                self.block_of[key] = block
                self.hash_of[block] = key

    def release(self, blocks: list[int]) -> None:
        """Let go of ``blocks``, last first."""
        for block in reversed(blocks):
            self.holds[block] -= 1
            if self.holds[block] == 0:
                self.unheld[block] = None

    def time_requests(self, prompts: NDArray[np.uint32]) -> Timings:
        """Times the same calls as ``pyengine._core.time_requests``."""
        timings: Timings = {verb: [] for verb in VERBS}
        for row in prompts:
            tokens = row.tolist()
            times = [perf_counter_ns()]
            blocks = self.match(tokens)
            times.append(perf_counter_ns())
            blocks += self.allocate(BLOCKS - len(blocks))
            times.append(perf_counter_ns())
            self.insert(tokens, blocks)
            times.append(perf_counter_ns())
            self.release(blocks)
            times.append(perf_counter_ns())
            for verb, start, end in zip(VERBS, times, times[1:], strict=False):
                timings[verb].append(end - start)
        return timings


def microseconds(nanoseconds: list[int]) -> float:
    return median(nanoseconds) / 1000


def measure(
    run: Callable[[NDArray[np.uint32]], Timings], prompts: NDArray[np.uint32], samples: int
) -> dict[str, float]:
    """Fill a tree with all ``prompts`` but the last ``samples``, meet known ones, then new ones."""
    known, new = prompts[:-samples], prompts[-samples:]
    growing = run(known)
    again = np.random.default_rng(1).integers(0, len(known), samples)
    known_again = run(known[again])
    full = run(new)  # each takes its blocks from the oldest prompt
    return {
        "match": microseconds(known_again["match"]),
        "insert": microseconds(growing["insert"][-samples:]),
        "insert_when_full": microseconds(full["insert"]),
        "allocate_block": microseconds(growing["allocate"][-samples:]) / BLOCKS,
        "evict_block": microseconds(full["allocate"]) / BLOCKS,
        "release_block": microseconds(known_again["release"]) / BLOCKS,
    }


def bench() -> dict[str, Any]:
    rng = np.random.default_rng(0)
    trees: dict[str, dict[str, dict[str, float]]] = {}
    for size in TREES:
        prompts = rng.integers(0, 1 << 17, (size + SAMPLES, LENGTH), dtype=np.uint32)
        kv = KvAllocator(size * BLOCKS, BLOCK)

        def run(rows: NDArray[np.uint32], kv: KvAllocator = kv) -> Timings:
            return time_requests(kv, rows, LENGTH)

        core = measure(run, prompts, SAMPLES)
        kv.check()
        few = prompts[: size + PEER_SAMPLES]
        peer = measure(HashedBlocks(size * BLOCKS).time_requests, few, PEER_SAMPLES)
        ratio = {name: peer[name] / core[name] for name in core}
        trees[str(size)] = {"pyengine_us": core, "peer_us": peer, "ratio": ratio}
    largest = trees[str(TREES[-1])]["pyengine_us"]
    return {
        "prefix_match_us_2048": max(tree["pyengine_us"]["match"] for tree in trees.values()),
        "prefix_insert_us_2048": max(tree["pyengine_us"]["insert"] for tree in trees.values()),
        "allocate_block_us": largest["allocate_block"],
        "release_block_us": largest["release_block"],
        "evict_block_us": largest["evict_block"],
        "trees": trees,
    }


def report(result: dict[str, object]) -> None:
    trees = result["trees"]
    assert isinstance(trees, dict)
    print(f"{LENGTH} tokens in blocks of {BLOCK}; medians in µs: pyengine | peer | peer / pyengine")
    for size, tree in trees.items():
        print(f"\n{int(size):,} prompts in the tree")
        for name, core in tree["pyengine_us"].items():
            peer, ratio = tree["peer_us"][name], tree["ratio"][name]
            print(f"  {name:17} {core:9.3f} | {peer:9.3f} | {ratio:7.1f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    json_option(parser)
    arguments = parser.parse_args()
    result = bench()
    if not write_json(result, arguments.json):
        return
    report(result)


if __name__ == "__main__":
    main()

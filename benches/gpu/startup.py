"""How long does an engine take to start?

Twice, in a process of its own each, as ``pyengine serve`` has it: the first may compile kernels,
which the second finds on the disk. Other parts come after it, so that they need not wait for that.
"""

import asyncio
import time
from collections.abc import Generator
from dataclasses import dataclass

from benches.gpu.engines import engine_config, greedy
from benches.gpu.part import Bench, Part
from pyengine import AsyncEngine


@dataclass(frozen=True)
class Row:
    """One start.

    Attributes:
        start: ``first`` or ``second``.
        ready_s: Until requests were taken: process, torch, weights made up on the device, kernels,
            memory measured.
        answer_s: Then, until a first short answer was there.
        kv_tokens: Tokens that the KV cache holds.
    """

    start: str
    ready_s: float
    answer_s: float
    kv_tokens: int


def run(bench: Bench) -> Generator[Row]:
    """One after the other."""
    for start in ("first", "second"):
        yield asyncio.run(started(bench, start))


async def started(bench: Bench, start: str) -> Row:
    """One start, and its first answer."""
    config = engine_config(bench, max_sequences=256 if bench.cuda else 2)
    begin = time.perf_counter()
    engine = AsyncEngine(config=config, placement="thread" if bench.tiny else "process")
    try:
        await engine.start()
        ready = time.perf_counter()
        bench.about({"engine": engine.info.device, **engine.info.notes})
        await engine.generate([1, 2, 3], greedy(4))
        return Row(
            start,
            ready_s=ready - begin,
            answer_s=time.perf_counter() - ready,
            kv_tokens=engine.info.num_blocks * config.block_size,
        )
    finally:
        await engine.close()


PART = Part("startup", "How long does an engine take to start?", 50.0, Row, run)

"""Watching an engine for a while: its totals, and every span that came meanwhile."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine._core import Recorder, Stage, Track
from pyengine.queues import EngineInfo
from pyengine.telemetry.spans import SPAN, Spans, select
from pyengine.telemetry.totals import Totals

PERIOD_S = 0.25
# Spans that are kept: 128 MiB of them. Of a longer observation, the latest.
MAX_SPANS = 4_000_000


class Observed(Protocol):
    """The part of :class:`pyengine.AsyncEngine` that observing needs."""

    @property
    def info(self) -> EngineInfo:
        """Facts settled at the engine's start."""

    @property
    def recorder(self) -> Recorder:
        """Holds its spans."""

    async def telemetry(self) -> Totals:
        """Where the time went since the engine started."""

    async def report(self) -> dict[str, int]:
        """Its stats: counters, and gauges among them."""


@dataclass(frozen=True)
class Observation:
    """An engine between two moments.

    Attributes:
        totals: What the accountant added up in between.
        spans: The spans in between.
        seconds: By a stopwatch.
        stats: By how much the engine's stats grew in between; its gauges are none.
        device: What it runs on, in words.
    """

    totals: Totals
    spans: Spans
    seconds: float
    stats: dict[str, int]
    device: str

    @property
    def tokens(self) -> int:
        """Tokens that the engine generated."""
        return self.stats["completion_tokens"]


async def observe(
    engine: Observed, until: Callable[[], Coroutine[object, object, object]]
) -> Observation:
    """Watch ``engine``, begin ``until()`` and go on until it is done. On the engine's loop.

    Raises:
        BaseException: What ``until`` raises.
    """
    parts: list[bytes] = []
    before, stats = await engine.telemetry(), await engine.report()
    number, start = engine.recorder.recorded, time.perf_counter()
    ending = asyncio.create_task(until())
    done = False
    try:
        while not done:
            done = bool((await asyncio.wait({ending}, timeout=PERIOD_S))[0])
            packed, number = engine.recorder.read(number)
            parts.append(packed)
            while sum(map(len, parts)) > MAX_SPANS * SPAN.itemsize:
                del parts[0]
        seconds = time.perf_counter() - start
        grown = {
            name: value - stats.get(name, 0) for name, value in (await engine.report()).items()
        }
        totals = (await engine.telemetry()).since(before)
    finally:
        ending.cancel()
    await asyncio.gather(ending)
    seen = np.frombuffer(b"".join(parts), SPAN)
    return Observation(totals, seen, seconds, grown, engine.info.device)


def step_times_ms(spans: Spans) -> NDArray[np.float64]:
    """Each step's time in ms: from the end of the one before it, less what was idle in between."""
    steps = np.sort(select(spans, Track.DEVICE, Stage.DEVICE), order="start")
    if len(steps) == 0:
        return np.zeros(0)
    ends, starts = steps["end"].astype(np.int64), steps["start"].astype(np.int64)
    idle = np.sort(select(spans, Track.SCHEDULER, Stage.IDLE), order="start")
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    waited = gaps - _covered(idle, ends[:-1], np.maximum(starts[1:], ends[:-1]))
    times = ends[1:] - np.maximum(starts[1:], ends[:-1]) + waited
    first = ends[:1] - starts[:1]
    return np.concatenate([first, times]) * 1e-6


def _covered(idle: Spans, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of each ``start..end`` the disjoint spans ``idle`` cover."""
    if len(idle) == 0:
        return np.zeros(len(start), np.int64)
    begins, ends = idle["start"].astype(np.int64), idle["end"].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def until(moment: NDArray[np.int64]) -> NDArray[np.int64]:
        whole = np.searchsorted(ends, moment, side="right")
        part = np.zeros(len(moment), np.int64)
        inside = whole < len(ends)
        part[inside] = np.maximum(moment[inside] - begins[whole[inside]], 0)
        return before[whole] + part

    covered: NDArray[np.int64] = until(end) - until(start)
    return covered

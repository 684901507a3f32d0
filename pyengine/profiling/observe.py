"""Watching an engine for a while: its totals, and every span that came meanwhile."""

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field, replace

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyengine._core import Stage, Track
from pyengine.async_engine import AsyncEngine
from pyengine.profiling.flames import Flame
from pyengine.profiling.flames import sampled as stacks
from pyengine.telemetry.drafts import proposers
from pyengine.telemetry.host import HostUse
from pyengine.telemetry.spans import SPAN, Spans, select
from pyengine.telemetry.totals import Totals

PERIOD_S = 0.25
# Spans that are kept: 128 MiB of them. Of a longer observation, the latest.
MAX_SPANS = 4_000_000


class Sample(msgspec.Struct, frozen=True):
    """The engine's stats at a moment, :func:`time.monotonic_ns`."""

    at_ns: int
    stats: dict[str, int]

    def grown(self, name: str, before: "Sample") -> int:
        """By how much a counter grew since ``before``."""
        return self.stats.get(name, 0) - before.stats.get(name, 0)

    @property
    def accepted_drafts(self) -> int:
        """Draft tokens that held, of all proposers, since the engine started."""
        return sum(drafts.accepted for drafts in proposers(self.stats))


@dataclass(frozen=True)
class Observation:
    """An engine between two moments.

    Attributes:
        totals: What the accountant added up in between.
        host: What the machine gave the engine's threads, and this loop's, in between.
        spans: The spans in between.
        seconds: By a stopwatch.
        stats: By how much the engine's stats grew in between; its gauges are none.
        device: What it runs on, in words.
        samples: Its stats every :data:`PERIOD_S`, if they were asked for.
        flames: The Python functions below stages, if they were asked for.
    """

    totals: Totals
    host: HostUse
    spans: Spans
    seconds: float
    stats: dict[str, int]
    device: str
    samples: list[Sample] = field(default_factory=list)
    flames: list[Flame] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        """Tokens that the engine generated."""
        return self.stats["completion_tokens"]


async def observe(
    engine: AsyncEngine,
    until: Callable[[], Coroutine[object, object, object]],
    *,
    sampled: bool = False,
    pyspy: bool = False,
) -> Observation:
    """Watch ``engine``, begin ``until()`` and go on until it is done. On the engine's loop.

    Args:
        engine: Is watched.
        until: Made when the watch begins.
        sampled: Take samples of the stats, too, each of which costs the scheduler some 0.1 ms.
        pyspy: Let py-spy sample the Python functions of this process and the engine's.

    Raises:
        BaseException: What ``until`` raises.
    """
    async with stacks(pyspy) as flames:
        seen = await _observed(engine, until, sampled)
    return replace(seen, flames=flames)


async def _observed(
    engine: AsyncEngine, until: Callable[[], Coroutine[object, object, object]], sampled: bool
) -> Observation:
    parts: list[bytes] = []
    samples: list[Sample] = []
    before, stats = await engine.telemetry(), await engine.report()
    host = before.host.with_caller("frontend")
    number, start = engine.recorder.recorded, time.perf_counter()
    ending = asyncio.create_task(until())
    done = False
    try:
        while not done:
            done = bool((await asyncio.wait({ending}, timeout=PERIOD_S))[0])
            packed, number = engine.recorder.read(number)
            parts.append(packed)
            if sampled:
                samples.append(Sample(time.monotonic_ns(), await engine.report()))
            while sum(map(len, parts)) > MAX_SPANS * SPAN.itemsize:
                del parts[0]
        seconds = time.perf_counter() - start
        grown = {
            name: value - stats.get(name, 0) for name, value in (await engine.report()).items()
        }
        after = await engine.telemetry()
        totals = after.since(before)
        host = after.host.with_caller("frontend").since(host)
    finally:
        ending.cancel()
    await asyncio.gather(ending)
    seen = np.frombuffer(b"".join(parts), SPAN)
    return Observation(totals, host, seen, seconds, grown, engine.info.device, samples)


def step_times_ms(spans: Spans) -> NDArray[np.float64]:
    """Each step's time in ms: from the end of the one before it, less what was idle in between."""
    steps = np.sort(select(spans, Track.DEVICE, Stage.DEVICE), order="start")
    if len(steps) == 0:
        return np.zeros(0)
    ends, starts = steps["end"].astype(np.int64), steps["start"].astype(np.int64)
    idle = np.sort(select(spans, Track.SCHEDULER, Stage.IDLE), order="start")
    gaps = np.maximum(starts[1:] - ends[:-1], 0)
    waited = gaps - covered(idle, ends[:-1], np.maximum(starts[1:], ends[:-1]))
    times = ends[1:] - np.maximum(starts[1:], ends[:-1]) + waited
    first = ends[:1] - starts[:1]
    return np.concatenate([first, times]) * 1e-6


def covered(spans: Spans, start: NDArray[np.int64], end: NDArray[np.int64]) -> NDArray[np.int64]:
    """How much of each ``start..end`` the disjoint spans, sorted by their start, cover."""
    if len(spans) == 0:
        return np.zeros(len(start), np.int64)
    begins, ends = spans["start"].astype(np.int64), spans["end"].astype(np.int64)
    before = np.concatenate([[0], np.cumsum(ends - begins)])

    def until(moment: NDArray[np.int64]) -> NDArray[np.int64]:
        whole = np.searchsorted(ends, moment, side="right")
        part = np.zeros(len(moment), np.int64)
        inside = whole < len(ends)
        part[inside] = np.maximum(moment[inside] - begins[whole[inside]], 0)
        return before[whole] + part

    covered: NDArray[np.int64] = until(end) - until(start)
    return covered

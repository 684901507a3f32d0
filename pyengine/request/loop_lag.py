"""How late an asyncio loop comes to its timers, and because of what.

::

    timer    ├──── 20 ms ────┤ due
    loop     ├─ other calls, another thread's GIL, no core ─┤ tick
                              ├───────── loop_lag ──────────┤
"""

import asyncio
import os
import sys
import time
from collections.abc import Callable

from pyengine._core import Stage, Timeline, Track

PERIOD_NS = 20_000_000
# What is shorter is usual: a call that computes for a moment, a wake-up.
_CORE_NS = 100_000
_HELD_NS = 2_000_000


class LoopLag:
    """Records the lag of the running loop while ``busy()``. On that loop.

    The kernel counts how long the loop's thread ran, how long it was ready without a core, and how
    often it got one. A thread that waits for the GIL asks for it once in each switch interval, so
    it gets a core about as often; one whose call computes runs, and one whose call blocks sleeps.
    """

    def __init__(self, timeline: Timeline, busy: Callable[[], object]) -> None:
        """Nothing is measured until :meth:`start`."""
        self._timeline = timeline
        self._busy = busy
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0
        self._counts = (0, 0, 0)
        self._file = -1

    def start(self) -> None:
        """Measure from now on until nothing is busy any more."""
        if self._timer is None:
            self._loop = asyncio.get_running_loop()
            self._file = _open()
            self._counts = self._scheduled()
            self._wait()

    def stop(self) -> None:
        """Measure no more. Idempotent."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            if self._file >= 0:
                os.close(self._file)

    def _wait(self) -> None:
        assert self._loop is not None
        self._due = time.monotonic_ns() + PERIOD_NS
        self._timer = self._loop.call_later(PERIOD_NS * 1e-9, self._tick)

    def _tick(self) -> None:
        now = time.monotonic_ns()
        late = max(now - self._due, 0)
        counts = self._scheduled()
        ran, core, times = (
            after - before for after, before in zip(counts, self._counts, strict=True)
        )
        self._counts = counts
        self._record(Stage.LOOP_LAG, now, late)
        if core >= _CORE_NS:
            self._record(Stage.CORE_WAIT, now, core)
        if (rest := late - core) >= _HELD_NS:
            asked = times * sys.getswitchinterval() * 1e9
            waited = ran < rest / 2 <= asked
            self._record(Stage.GIL_WAIT if waited else Stage.LOOP_HELD, now, rest)
        if self._busy():
            self._wait()
        else:
            self.stop()

    def _record(self, stage: Stage, end: int, length: int) -> None:
        self._timeline.record(Track.LOOP, stage, end - length, end, 0)

    def _scheduled(self) -> tuple[int, int, int]:
        """Nanoseconds on a core, nanoseconds without one, times on one: of the loop's thread."""
        if self._file < 0:
            return 0, 0, 0
        ran, waited, times = map(int, os.pread(self._file, 64, 0).split())
        return ran, waited, times


def _open() -> int:
    """The kernel's counts of this thread; -1 where it keeps none."""
    try:
        return os.open("/proc/thread-self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return -1

"""A run cut into windows of equal length, so that a figure comes with how much it varies."""

from collections.abc import Sequence
from math import sqrt
from statistics import fmean, stdev
from typing import NamedTuple

import msgspec
import numpy as np

from pyengine._core import Stage, Track
from pyengine.profiling.observe import covered, step_times_ms
from pyengine.telemetry.spans import Spans, select

WINDOWS = 8
_STUDENT_T = 2.365
"""Student's t for 95% and one degree of freedom less than there are windows."""


class Window(msgspec.Struct, frozen=True):
    """One window: the device's time that was lost in it, and the mean time of its steps."""

    exposed_cpu_ratio: float
    step_ms: float


class Interval(NamedTuple):
    """A mean, and how far the true one may be from it at 95%."""

    mean: float
    half: float

    @classmethod
    def of(cls, values: Sequence[float]) -> "Interval | None":
        """Of the values of all windows; None where a run had no windows."""
        if len(values) != WINDOWS:
            return None
        return cls(fmean(values), _STUDENT_T * stdev(values) / sqrt(WINDOWS))

    def differs_from(self, other: "Interval") -> bool:
        """Whether the difference is more than the noise of both."""
        return abs(self.mean - other.mean) > sqrt(self.half**2 + other.half**2)


def windows(spans: Spans) -> list[Window]:
    """The windows from the first step to the last; none where the steps are too few.

    A step counts where it ends. Lost is what is neither the device's nor idle, as in
    :class:`pyengine.telemetry.Totals`, over the time that the device was busy.
    """
    steps = np.sort(select(spans, Track.DEVICE, Stage.DEVICE), order="start")
    if len(steps) < 4 * WINDOWS:
        return []
    edges = np.linspace(steps["start"][0], steps["end"][-1], WINDOWS + 1).astype(np.int64)
    late = np.sort(select(spans, Track.DEVICE, Stage.SAMPLE), order="start")
    idle = np.sort(select(spans, Track.SCHEDULER, Stage.IDLE), order="start")
    busy, late_busy, waited = (covered(kind, edges[:-1], edges[1:]) for kind in (steps, late, idle))
    busy += late_busy
    times, numbers = step_times_ms(spans), np.searchsorted(edges, steps["end"], side="left") - 1
    found = []
    for number, length in enumerate(np.diff(edges)):
        inside = times[numbers == number]
        if len(inside) == 0 or busy[number] <= 0:
            return []
        lost = int(length - busy[number] - waited[number])
        found.append(Window(lost / int(busy[number]), float(inside.mean())))
    return found

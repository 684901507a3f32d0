"""When the device worked, in ``time.monotonic_ns()``: its own marks, set against the host's clock.

A device's marks (CUDA events) say how far apart two moments were, not when they were. What ties
them to the host's clock are two things that are certain of every step: it began after it was
launched, and it ended before the host had waited for it::

    host    ── launched ───────────────────────────── returned ──►
    device          └──── started ────── ended ──────────┘

So the difference of the clocks lies in ``[launched - started, returned - ended]``, and the one that
is kept is moved into that interval when it has drifted out. A step that the host had to wait for
returns at most :data:`WAKE_NS` after its end, which bounds the drift from below too while steps
queue up and each is launched long before it starts.

Times since the mark before are added up in integers: the device gives them in float32 milliseconds,
which are exact to 0.1 us for as long as a step takes, but not for a day.
"""

from typing import Any, NamedTuple, Protocol

WAKE_NS = 1_000_000


class Mark(Protocol):
    """A moment on the device's queue, known when it has come."""

    def elapsed_time(self, later: Any, /) -> float:
        """Milliseconds from this mark to a ``later`` one of its kind."""


class StepTimes(NamedTuple):
    """A step in ``time.monotonic_ns()``; see :class:`pyengine.model.runner.StepHandle`.

    Attributes:
        start_ns: The device began it.
        waited_ns: From when to when it waited for masks; equal if it did not.
        end_ns: It was over.
    """

    start_ns: int
    waited_ns: tuple[int, int]
    end_ns: int


class DeviceClock:
    """Turns marks of steps, in the order of the steps, into times of the host. One thread.

    O(1) a step.
    """

    def __init__(self, mark: Mark, now_ns: int) -> None:
        """``mark`` came at ``now_ns``, as exactly as the caller could tell."""
        self._last = mark
        self._last_ns = now_ns
        self._free_ns = now_ns

    def step(
        self,
        start: Mark,
        end: Mark,
        waited: tuple[Mark, Mark] | None = None,
        *,
        launched_ns: int,
        returned_ns: int,
        slept: bool,
    ) -> StepTimes:
        """When a step that is over began, waited and ended.

        Intervals of successive steps do not overlap, and none lies outside of
        ``launched_ns`` to ``returned_ns`` but for what the step before forbids.

        Args:
            start: Before its first work.
            end: Behind its last.
            waited: Behind its forward pass, and when its masks were there.
            launched_ns: The host's clock before ``start`` was queued.
            returned_ns: And when it knew that ``end`` had come.
            slept: Whether the host waited for ``end``, and so returned soon after it.
        """
        begun = self._last_ns + _nanoseconds(self._last, start)
        lasted = _nanoseconds(start, end)
        latest = returned_ns - begun - lasted
        earliest = launched_ns - begun
        if slept:
            earliest = max(earliest, latest - WAKE_NS)
        # Where both cannot be, the end is certain: nothing is known to have ended in the future.
        shift = min(max(0, earliest), latest)
        begun += shift
        self._last, self._last_ns = end, begun + lasted
        start_ns = max(begun, self._free_ns)
        end_ns = self._free_ns = max(begun + lasted, start_ns)
        if waited is None:
            return StepTimes(start_ns, (end_ns, end_ns), end_ns)
        inside = [min(max(begun + _nanoseconds(start, at), start_ns), end_ns) for at in waited]
        return StepTimes(start_ns, (inside[0], max(inside)), end_ns)


def _nanoseconds(earlier: Mark, later: Mark) -> int:
    return round(earlier.elapsed_time(later) * 1e6)

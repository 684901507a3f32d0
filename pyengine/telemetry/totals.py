"""The accountant's totals: for each stage, the time that the device waited for and the rest."""

from collections.abc import Iterable
from typing import Self

import msgspec

from pyengine._core import STEP_BOUNDS_NS, Accountant
from pyengine.telemetry.histogram import HistogramTotal
from pyengine.telemetry.host import HostUse

STEP_BOUNDS_S: tuple[float, ...] = tuple(bound * 1e-9 for bound in STEP_BOUNDS_NS)
"""Upper bounds of the step-time histogram in seconds; what is longer than all counts behind it."""


class StageTotal(msgspec.Struct, array_like=True, gc=False, frozen=True):
    """The time of one stage in one track.

    Attributes:
        track: ``scheduler``, ``detokenizer``, ``frontend``, ``request`` or ``device``.
        stage: As ``pyengine._core.Stage`` names it, in lower case.
        count: Spans that have ended.
        exposed_ns: Nanoseconds during which the device had nothing to do.
        overlapped_ns: Nanoseconds during which the device worked.
    """

    track: str
    stage: str
    count: int
    exposed_ns: int
    overlapped_ns: int

    @property
    def total_ns(self) -> int:
        """Both together."""
        return self.exposed_ns + self.overlapped_ns


_NONE = HistogramTotal([], [], 0)


class Totals(msgspec.Struct, array_like=True, frozen=True):
    """Where the time went since the engine started, or between two of these (:meth:`since`).

    All numbers only grow. The scheduler's track has no gaps, so that
    ``wall = busy + the scheduler's exposed time + unaccounted``, idle counted among the exposed.

    Attributes:
        wall_ns: Nanoseconds that are accounted for.
        busy_ns: How many of those nanoseconds the device was busy.
        steps: Steps of the device.
        steps_ns: Their times added up: each from the end of the one before, less idle time.
        step_histogram: Steps up to each of :data:`STEP_BOUNDS_S`, not cumulated; last the longer.
        spans: Spans that were read.
        lost: Spans that were overwritten before they were read.
        span_cost_ns: What recording a span costs its thread, as measured at the start.
        stages: Every stage that occurred, by track.
        host: The cores that the engine's threads had and waited for.
        lengths: How many nanoseconds the spans of some stages took, by stage: ``first_token``,
            ``next_token``, ``deliver`` and ``loop_lag``.
    """

    wall_ns: int
    busy_ns: int
    steps: int
    steps_ns: int
    step_histogram: list[int]
    spans: int
    lost: int
    span_cost_ns: float
    stages: list[StageTotal]
    host: HostUse = msgspec.field(default_factory=HostUse)
    lengths: dict[str, HistogramTotal] = {}

    @classmethod
    def of(cls, accountant: Accountant, span_cost_ns: float) -> Self:
        """The totals of ``accountant`` now. Any thread."""
        stats = accountant.totals()
        return cls(
            **{name: stats[name] for name in cls.__struct_fields__[:7]},
            span_cost_ns=span_cost_ns,
            stages=[StageTotal(*stage) for stage in stats["stages"]],
            host=HostUse.of_engine(),
            lengths={stage: HistogramTotal(*each) for stage, each in stats["lengths"].items()},
        )

    def since(self, earlier: "Totals") -> "Totals":
        """The difference to ``earlier``, a total of the same engine."""
        before = {(total.track, total.stage): total for total in earlier.stages}
        nothing = StageTotal("", "", 0, 0, 0)
        stages = []
        for total in self.stages:
            old = before.get((total.track, total.stage), nothing)
            exposed, overlapped = (
                total.exposed_ns - old.exposed_ns, total.overlapped_ns - old.overlapped_ns
            )  # fmt: skip
            grown = total.count - old.count
            stages.append(StageTotal(total.track, total.stage, grown, exposed, overlapped))
        return Totals(
            self.wall_ns - earlier.wall_ns,
            self.busy_ns - earlier.busy_ns,
            self.steps - earlier.steps,
            self.steps_ns - earlier.steps_ns,
            [
                now - then
                for now, then in zip(self.step_histogram, earlier.step_histogram, strict=True)
            ],
            self.spans - earlier.spans,
            self.lost - earlier.lost,
            self.span_cost_ns,
            [total for total in stages if total.count or total.total_ns],
            self.host.since(earlier.host),
            {
                stage: now.since(earlier.lengths.get(stage, _NONE))
                for stage, now in self.lengths.items()
            },
        )

    def of_track(self, track: str) -> list[StageTotal]:
        """The stages of one track."""
        return [total for total in self.stages if total.track == track]

    @property
    def idle_ns(self) -> int:
        """Time in which neither the scheduler nor the device had work."""
        return _exposed(total for total in self.of_track("scheduler") if total.stage == "idle")

    @property
    def exposed_cpu_ns(self) -> int:
        """Time in which there was work and the device did none."""
        return self.wall_ns - self.busy_ns - self.idle_ns

    @property
    def exposed_cpu_ratio(self) -> float:
        """:attr:`exposed_cpu_ns` over the time that the device was busy; 0 if it never was."""
        return self.exposed_cpu_ns / self.busy_ns if self.busy_ns else 0.0

    @property
    def unaccounted_ratio(self) -> float:
        """The share of the wall time that is neither the device's nor in a stage."""
        known = self.busy_ns + _exposed(self.of_track("scheduler"))
        return (self.wall_ns - known) / self.wall_ns if self.wall_ns else 0.0

    @property
    def recorder_ns(self) -> float:
        """The cost of recording: spans times their cost. It is part of the stages."""
        return self.spans * self.span_cost_ns


def _exposed(totals: Iterable[StageTotal]) -> int:
    return sum(total.exposed_ns for total in totals)

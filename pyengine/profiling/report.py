"""The report of a profile: what its JSON holds, and how it is made of an observation."""

from typing import Any, Self

import msgspec
import numpy as np

from pyengine._core import Stage, Track
from pyengine.devices import find_device
from pyengine.errors import ConfigError
from pyengine.model.runner import kind_of
from pyengine.profiling.flames import Flame
from pyengine.profiling.observe import Observation, step_times_ms
from pyengine.profiling.waits import TokenWaits
from pyengine.profiling.windows import Window, windows
from pyengine.telemetry.drafts import Drafts, proposers
from pyengine.telemetry.host import HostUse
from pyengine.telemetry.spans import Spans, select

# Of these the page draws a timeline, and every step time as a bar of a histogram.
SHOWN_STEPS = 24
SHOWN_STEP_TIMES = 5000


class StageRow(msgspec.Struct, frozen=True):
    """A stage of a track.

    Attributes:
        exposed_s: Seconds that the device waited for it, or would have.
        overlapped_s: Seconds of it while the device worked.
        us_per_step: Microseconds of both, by step.
        share: Of both together, in the wall time.
    """

    track: str
    stage: str
    count: int
    exposed_s: float
    overlapped_s: float
    us_per_step: float
    share: float


class StepTimes(msgspec.Struct, frozen=True):
    """The distribution of step times in ms; ``values`` holds the latest single ones."""

    mean: float
    p50: float
    p90: float
    p99: float
    max: float
    values: list[float]


class RecorderCost(msgspec.Struct, frozen=True):
    """The cost of recording: ``spans`` at ``span_ns`` each; ``lost`` were overwritten unread."""

    span_ns: float
    spans: int
    lost: int
    cost_s: float
    share: float


class SweepPoint(msgspec.Struct, frozen=True):
    """One size of the batch: ``cpu_us_per_step`` by track, without waiting."""

    sequences: int
    exposed_cpu_ratio: float
    tokens_per_second: float
    step_ms: float
    cpu_us_per_step: dict[str, float]


class Latency(msgspec.Struct, frozen=True):
    """A distribution over requests or tokens, in ms."""

    requests: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float = 0.0

    @classmethod
    def of(cls, spans: Spans, stage: Stage) -> Self | None:
        """The lengths of the spans of a stage of requests; None where there are none."""
        found = select(spans, Track.REQUEST, stage)
        if len(found) == 0:
            return None
        times = (found["end"] - found["start"]) * 1e-6
        p50, p90, p99 = np.percentile(times, [50, 90, 99]).tolist()
        return cls(len(times), float(times.mean()), p50, p90, p99, float(times.max()))


class ReplayPoint(msgspec.Struct, frozen=True):
    """What clients saw of a recorded day: when it was recorded, or in a replay."""

    name: str
    first_token_ms: Latency | None
    next_token_ms: Latency | None

    @classmethod
    def of(cls, name: str, spans: Spans) -> Self:
        """The waits among ``spans``."""
        waits = (Latency.of(spans, stage) for stage in (Stage.FIRST_TOKEN, Stage.NEXT_TOKEN))
        return cls(name, *waits)


class ProfileReport(msgspec.Struct, frozen=True, kw_only=True):
    """The report, as ``pyengine profile --json`` writes it.

    Attributes:
        setup: How it was measured; ``device`` is what it ran on, in words.
        wall_s: Seconds that are accounted for.
        device_busy_s: Of those, how many the device worked.
        idle_s: And how many there was nothing to do.
        exposed_cpu_ratio: ``(wall_s - idle_s - device_busy_s) / device_busy_s``.
        exposed_cpu_ratio_busy_loop: The same beside a service whose loop is half busy.
        tokens: Tokens that came.
        tokens_per_second: By a stopwatch, at the readers where those are here.
        cpu_us_per_step: Microseconds of work by step in each track; waiting is none, nor what a
            device computes on the CPU.
        drafts: Proposed and accepted drafts, by proposer; only of proposers that drafted.
        cached_share: The share of a trace's prompt tokens that the prefix cache had.
        ideal_cached_share: The share that a cache of the same size could have had; see
            :mod:`pyengine.profiling.ideal_cache`.
        unaccounted_ratio: The share of the wall time that is in no stage.
        first_token_ms: From the arrival of requests until their first token was written to its
            connection, or its reader had taken it.
        next_token_ms: Between two such writes of one request.
        token_waits: The part of both that was not the device's, and why.
        host: What the machine gave the engine's threads, the frontend's being the one that
            measured; None in reports of older versions.
        windows: The same run in parts, which tell how much its figures vary.
        flames: The Python functions below stages, where py-spy sampled them.
        timeline: (track, stage, start, duration, step) of some steps, in microseconds.
    """

    version: int = 1
    setup: dict[str, Any]
    wall_s: float
    device_busy_s: float
    idle_s: float
    exposed_cpu_ratio: float
    tokens: int
    tokens_per_second: float
    steps: int
    step_ms: StepTimes
    stages: list[StageRow]
    unaccounted_ratio: float
    recorder: RecorderCost
    cpu_us_per_step: dict[str, float] = {}
    drafts: list[Drafts] = []
    exposed_cpu_ratio_busy_loop: float | None = None
    tokens_per_second_busy_loop: float | None = None
    queue_wait_ms: Latency | None = None
    cached_share: float | None = None
    ideal_cached_share: float | None = None
    sweep: list[SweepPoint] = []
    replays: list[ReplayPoint] = []
    first_token_ms: Latency | None = None
    next_token_ms: Latency | None = None
    token_waits: TokenWaits | None = None
    host: HostUse | None = None
    windows: list[Window] = []
    flames: list[Flame] = []
    timeline: list[tuple[str, str, float, float, int]] = []

    @classmethod
    def of(cls, observation: Observation, setup: dict[str, Any], tokens: int | None = None) -> Self:
        """The report of ``observation``; ``tokens`` as the readers counted them, if they did."""
        totals, spans = observation.totals, observation.spans
        wall_s, steps = totals.wall_ns * 1e-9, totals.steps
        tokens = observation.tokens if tokens is None else tokens
        rows = [
            StageRow(
                total.track,
                total.stage,
                total.count,
                total.exposed_ns * 1e-9,
                total.overlapped_ns * 1e-9,
                total.total_ns * 1e-3 / max(steps, 1),
                total.total_ns * 1e-9 / wall_s if wall_s else 0.0,
            )
            for total in totals.stages
        ]
        cost_s = totals.recorder_ns * 1e-9
        return cls(
            setup={"device": observation.device} | setup,
            wall_s=wall_s,
            device_busy_s=totals.busy_ns * 1e-9,
            idle_s=totals.idle_ns * 1e-9,
            exposed_cpu_ratio=totals.exposed_cpu_ratio,
            tokens=tokens,
            tokens_per_second=tokens / observation.seconds,
            steps=steps,
            step_ms=_step_times(spans),
            stages=rows,
            unaccounted_ratio=totals.unaccounted_ratio,
            recorder=RecorderCost(
                totals.span_cost_ns,
                totals.spans,
                totals.lost,
                cost_s,
                cost_s / wall_s if wall_s else 0.0,
            ),
            cpu_us_per_step=_cpu_us_per_step(rows, kind_of(observation.device)),
            drafts=[drafts for drafts in proposers(observation.stats) if drafts.drafted],
            queue_wait_ms=Latency.of(spans, Stage.QUEUE_WAIT),
            first_token_ms=Latency.of(spans, Stage.FIRST_TOKEN),
            next_token_ms=Latency.of(spans, Stage.NEXT_TOKEN),
            token_waits=TokenWaits.of(spans),
            host=observation.host,
            windows=windows(spans),
            flames=observation.flames,
            timeline=_timeline(spans),
        )


def load_report(text: bytes, name: str) -> ProfileReport:
    """A report that ``--json`` wrote.

    Raises:
        ConfigError: It is none.
    """
    try:
        return msgspec.json.decode(text, type=ProfileReport)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} is not a report of `pyengine profile --json`: {error}") from None


def _cpu_us_per_step(rows: list[StageRow], device: str) -> dict[str, float]:
    # What a device computes on the scheduler's thread is its work, not the engine's.
    others = ("copy_back", "idle", *find_device(device).host_stages)
    tracks: dict[str, float] = {}
    for row in rows:
        if row.track not in ("device", "request", "loop") and row.stage not in others:
            tracks[row.track] = tracks.get(row.track, 0.0) + row.us_per_step
    return tracks


def _step_times(spans: Spans) -> StepTimes:
    times = step_times_ms(spans)
    if len(times) == 0:
        return StepTimes(0.0, 0.0, 0.0, 0.0, 0.0, [])
    p50, p90, p99 = np.percentile(times, [50, 90, 99]).tolist()
    values = np.round(times[-SHOWN_STEP_TIMES:], 4).tolist()
    return StepTimes(float(times.mean()), p50, p90, p99, float(times.max()), values)


def _timeline(spans: Spans) -> list[tuple[str, str, float, float, int]]:
    """The spans of some steps in the middle, from the beginning of the first."""
    steps = np.sort(select(spans, Track.DEVICE, Stage.DEVICE), order="start")
    if len(steps) == 0:
        return []
    first = max(len(steps) // 2 - SHOWN_STEPS // 2, 0)
    shown = steps[first : first + SHOWN_STEPS]
    start, end = shown["start"][0], shown["end"][-1]
    inside = spans[(spans["end"] > start) & (spans["start"] < end)]
    waits = np.isin(inside["track"], [int(Track.REQUEST), int(Track.LOOP)])
    inside = np.sort(inside[~waits], order="start")
    tracks = [track.label for track in Track.all()]
    stages = [stage.label for stage in Stage.all()]
    return [
        (
            tracks[span["track"]],
            stages[span["stage"]],
            round((int(span["start"]) - int(start)) * 1e-3, 2),
            round((int(span["end"]) - int(span["start"])) * 1e-3, 2),
            int(span["step"]),
        )
        for span in inside
    ]

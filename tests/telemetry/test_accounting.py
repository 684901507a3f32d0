"""The accounting of a running engine, in either placement, and its arithmetic."""

import asyncio

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine._core import Accountant, Recorder, Stage, Track
from pyengine.placement import PlacementName
from pyengine.telemetry import STEP_BOUNDS_S, StageTotal, Totals

ANSWER = SamplingParams(max_tokens=40, ignore_eos=True, stop=("never said",), seed=1)


@pytest.mark.parametrize("placement", ["thread", "process"])
async def test_a_running_engine_accounts_for_everything(placement: PlacementName) -> None:
    async with AsyncEngine(
        device="simulated", simulated_step_ms=1.0, placement=placement
    ) as engine:
        before = await engine.telemetry()
        await asyncio.gather(*[engine.generate("Tell me more", ANSWER) for _ in range(8)])
        await engine.drained()
        window = (await engine.telemetry()).since(before)
    assert window.steps >= 40
    assert window.busy_ns == window.steps * 1_000_000
    assert sum(window.step_histogram) == window.steps
    assert len(window.step_histogram) == len(STEP_BOUNDS_S) + 1
    assert window.steps_ns >= window.busy_ns
    assert window.lost == 0
    assert 0 < window.recorder_ns < window.wall_ns
    # The scheduler's track has no gaps: only a span under way is not known yet.
    assert abs(window.unaccounted_ratio) < 0.02
    assert window.exposed_cpu_ratio >= 0
    seen = {(total.track, total.stage): total for total in window.stages}
    wanted = {
        "scheduler": ["drain", "admit", "match", "allocate", "buffer_fill", "launch", "copy_back",
                      "commit", "message"],
        "detokenizer": ["detokenize", "stop_match", "message"],
        "frontend": ["tokenize", "message"],
        "request": ["queue_wait", "prefill", "decode", "deliver"],
        "device": ["device"],
    }  # fmt: skip
    assert not [
        (track, s) for track, stages in wanted.items() for s in stages if (track, s) not in seen
    ]
    assert seen["request", "queue_wait"].count == 8
    assert seen["frontend", "tokenize"].count == 8
    assert seen["device", "device"].overlapped_ns == window.busy_ns
    assert seen["scheduler", "launch"].count == window.steps


async def test_an_engine_whose_recorder_is_off_says_nothing() -> None:
    engine = AsyncEngine(device="simulated", simulated_step_ms=0.5)
    engine.recorder.enabled = False
    async with engine:
        await engine.generate("Tell me more", ANSWER)
        totals = await engine.telemetry()
        assert (totals.spans, totals.stages, totals.exposed_cpu_ratio) == (0, [], 0.0)
        engine.recorder.enabled = True
        await engine.generate("Tell me more", ANSWER)
        assert (await engine.telemetry()).steps >= 39


def test_hand_made_spans_add_up() -> None:
    recorder = Recorder(64)
    accountant = Accountant(recorder)
    timeline = recorder.timeline(Track.SCHEDULER)
    now = timeline.now()
    ms = 1_000_000
    # Ends lie in the future, where nothing is judged yet but what is certain: wait for them.
    timeline.record(Track.DEVICE, Stage.DEVICE, now + 1 * ms, now + 3 * ms, 1)
    timeline.record(Track.SCHEDULER, Stage.LAUNCH, now, now + 2 * ms, 1)
    timeline.record(Track.SCHEDULER, Stage.IDLE, now + 2 * ms, now + 4 * ms, 1)
    while timeline.now() < now + 4 * ms:
        pass
    totals = Totals.of(accountant, 40.0)
    assert {(t.stage, t.count, t.exposed_ns, t.overlapped_ns) for t in totals.stages} == {
        ("device", 1, 0, 2 * ms),
        ("launch", 1, ms, ms),
        ("idle", 1, ms, ms),
    }
    assert (totals.busy_ns, totals.idle_ns, totals.steps) == (2 * ms, ms, 1)
    assert totals.exposed_cpu_ns == totals.wall_ns - 3 * ms
    assert totals.recorder_ns == 3 * 40.0


def test_a_window_is_the_difference() -> None:
    early = Totals(
        100, 80, 10, 90, [1, 9], 50, 1, 30.0, [StageTotal("frontend", "message", 2, 3, 4)]
    )
    more = [
        StageTotal("frontend", "message", 5, 3, 10),
        StageTotal("request", "queue_wait", 1, 0, 7),
    ]
    late = Totals(300, 240, 30, 270, [2, 28], 150, 1, 30.0, more)
    window = late.since(early)
    assert (window.wall_ns, window.busy_ns, window.steps, window.steps_ns) == (200, 160, 20, 180)
    assert (window.step_histogram, window.spans, window.lost) == ([1, 19], 100, 0)
    assert window.stages == [StageTotal("frontend", "message", 3, 0, 6), more[1]]
    assert late.since(late).stages == []
    assert window.exposed_cpu_ratio == (200 - 160) / 160

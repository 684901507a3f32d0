"""What others read of an engine's signs of life."""

import os

from pyengine import AsyncEngine, SamplingParams
from pyengine.actors.heartbeat import Heartbeat
from tests.programs import until


def test_another_process_reads_what_the_engine_writes() -> None:
    engine = Heartbeat.make(frontends=2)
    other = Heartbeat(os.dup(engine.descriptor()))
    assert (other.silent_s, other.step_s, other.restarts) == (0, 0, 0)
    assert other.trouble(1) is None
    engine.beat()
    engine.begin_step()
    assert other.silent_s > 0
    assert other.step_s > 0
    assert other.trouble(600) is None
    assert not other.hung(600)
    assert "a step has taken" in (other.trouble(0) or "")
    assert other.hung(0)
    engine.rest()
    assert other.step_s == 0
    engine.set_load(0, 3)
    other.set_load(1, 4)
    assert engine.load() == other.load() == 7
    engine.count_restart()
    engine.reset()
    assert (other.silent_s, other.step_s, other.restarts) == (0, 0, 1)


async def test_a_long_step_on_a_thread_is_seen() -> None:
    params = SamplingParams(max_tokens=3, ignore_eos=True)
    async with AsyncEngine(
        device="simulated", simulated_step_ms=50, step_timeout_s=0.001
    ) as engine:
        answer = engine.generate("Go on", params)
        await until(lambda: "a step has taken" in str(engine.waits_for))
        assert (await answer).usage.completion_tokens == 3
        await until(lambda: engine.waits_for is None)

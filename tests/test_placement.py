"""The engine in a process of its own: the same answers, and no survivor, whoever dies."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import EngineDeadError, ModelLoadError
from pyengine.placement import PlacementName
from pyengine.placement.process import ProcessPlacement

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def simulated(placement: PlacementName) -> AsyncEngine:
    return AsyncEngine(device="simulated", simulated_step_ms=2.0, placement=placement)


def engine_process(engine: AsyncEngine) -> int:
    """The process id of ``engine``'s process."""
    placement = engine._placement
    assert isinstance(placement, ProcessPlacement)
    assert placement.process is not None
    return placement.process.pid


async def wait_for_end(pid: int) -> None:
    """Return when process ``pid``, which need not be a child, is gone."""
    descriptor = os.pidfd_open(pid)
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), 10)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


async def test_both_placements_answer_alike() -> None:
    answers = []
    for placement in ("thread", "process"):
        async with AsyncEngine(placement=placement) as engine:
            answer = await engine.chat(QUESTION, SamplingParams(temperature=0, max_tokens=40))
            answers.append(answer.text)
            report = await engine.report()
            assert report["held"] == report["running"] == 0
    assert answers[0] == answers[1]
    assert "Paris" in answers[0]


async def test_the_process_ends_with_its_engine() -> None:
    engine = simulated("process")
    async with engine:
        pid = engine_process(engine)
        await engine.generate("Go on", SHORT)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)


async def test_kill_9_of_the_engine_answers_everyone_within_a_second() -> None:
    async with simulated("process") as engine:
        running = [engine.generate("Go on", LONG) for _ in range(20)]
        await anext(running[0])
        os.kill(engine_process(engine), signal.SIGKILL)
        died = time.monotonic()
        for generation in running:
            with pytest.raises(EngineDeadError):
                await generation
        assert time.monotonic() - died < 1.0, "a dead peer is noticed within a second"
        with pytest.raises(EngineDeadError):
            engine.generate("Go on", SHORT)


async def test_kill_9_of_the_service_ends_the_engine_too() -> None:
    script = """
import asyncio
from pyengine import AsyncEngine

async def main():
    async with AsyncEngine(device="simulated", placement="process") as engine:
        print(engine._placement.process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    service = subprocess.Popen(  # noqa: ASYNC220 - killed below
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True
    )
    assert service.stdout is not None
    pid = int(await asyncio.to_thread(service.stdout.readline))
    service.kill()
    await wait_for_end(pid)
    service.wait()
    service.stdout.close()


async def test_loading_fails_in_the_process_as_it_does_here(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_text("{}")
    errors = []
    for placement in ("thread", "process"):
        with pytest.raises(ModelLoadError) as refusal:
            async with AsyncEngine(tmp_path, placement=placement):
                pass
        errors.append(str(refusal.value))
    assert errors[0] == errors[1]

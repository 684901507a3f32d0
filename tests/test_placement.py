"""The engine in a process of its own: the same answers, and no survivor whichever process dies."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from unittest.mock import AsyncMock

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import EngineDeadError, ModelLoadError, OverloadedError, RequestAbortedError
from pyengine.messages import ReportRequest, encode_report_request
from pyengine.placement import PlacementName, Watcher
from pyengine.placement.children import ControlLine, Loading
from pyengine.placement.process import ProcessPlacement
from pyengine.placement.restarts import MAX_DEATHS, RestartLimit
from pyengine.placement.thread import ThreadPlacement
from pyengine.request.generation import Generation
from tests.programs import REPOSITORY, until, wait_for_end

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


def simulated(placement: PlacementName, step_timeout_s: float = 600) -> AsyncEngine:
    return AsyncEngine(
        device="simulated",
        simulated_step_ms=2.0,
        placement=placement,
        step_timeout_s=step_timeout_s,
    )


def engine_process(engine: AsyncEngine) -> int:
    """The process id of ``engine``'s process."""
    placement = engine.placement
    assert isinstance(placement, ProcessPlacement)
    assert placement.child is not None
    return placement.child.process.pid


@pytest.mark.slow
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


def test_a_line_ends_also_where_the_other_side_has_not_read_all() -> None:
    mine, theirs = socket.socketpair()
    line = ControlLine(theirs.detach())
    line.send(Loading(1, 2))
    mine.close()
    line.wait_for_end()
    assert line.receive() == b""
    line._lines.close()
    line._socket.close()


async def next_engine(engine: AsyncEngine, before: int) -> int:
    """The process id of the engine that was started in the place of ``before``; it is ready."""
    while True:
        # Asked while the engine is away, this is answered by the next one.
        await asyncio.wait_for(engine.report(), 60)
        if (pid := engine_process(engine)) != before:
            return pid


async def tokens_of(generation: Generation) -> list[int]:
    return [token async for update in generation for token in update.token_ids]


async def test_streams_go_on_over_kill_9_of_the_engine() -> None:
    prompts = ["Go on", "And then", "Once upon a time"]
    async with simulated("process") as engine:
        undisturbed = [(await engine.generate(prompt, LONG)) for prompt in prompts]
        running = [engine.generate(prompt, LONG) for prompt in prompts]
        first = [await anext(generation) for generation in running]
        before = engine_process(engine)
        os.kill(before, signal.SIGKILL)
        for generation, begin, whole in zip(running, first, undisturbed, strict=True):
            rest = await tokens_of(generation)
            assert begin.token_ids + rest == whole.token_ids
            answer = await generation
            assert answer.text == whole.text
            assert answer.usage.completion_tokens == LONG.max_tokens
        assert engine_process(engine) != before
        report = await engine.report()
        assert report["held"] == report["running"] == report["waiting"] == 0


@pytest.mark.slow
async def test_a_stopped_engine_is_noticed_and_goes_on() -> None:
    async with simulated("process") as engine:
        whole = await engine.generate("Go on", LONG)
        running = engine.generate("Go on", LONG)
        first = await anext(running)
        assert engine.waits_for is None
        os.kill(engine_process(engine), signal.SIGSTOP)
        await until(lambda: engine.waits_for is not None)
        assert "it has not run for" in str(engine.waits_for)
        os.kill(engine_process(engine), signal.SIGCONT)
        assert first.token_ids + await tokens_of(running) == whole.token_ids
        assert (engine.waits_for, engine.connection.restarts) == (None, 0)


@pytest.mark.slow
async def test_a_hung_engine_is_replaced() -> None:
    async with simulated("process", step_timeout_s=2.0) as engine:
        whole = await engine.generate("Go on", LONG)
        running = engine.generate("Go on", LONG)
        first = await anext(running)
        hung = engine_process(engine)
        os.kill(hung, signal.SIGSTOP)
        assert first.token_ids + await tokens_of(running) == whole.token_ids
        assert engine_process(engine) != hung
        assert engine.connection.restarts == 1
        report = await engine.report()
        assert report["held"] == report["running"] == report["waiting"] == 0


@pytest.mark.slow
async def test_closing_does_not_wait_for_a_stopped_engine() -> None:
    async with simulated("process") as engine:
        stopped = engine_process(engine)
        os.kill(stopped, signal.SIGSTOP)
        await until(lambda: engine.waits_for is not None)
    await wait_for_end(stopped)


async def test_request_waits_while_the_engine_is_away() -> None:
    engine = AsyncEngine(
        device="simulated", simulated_step_ms=2.0, placement="process", max_waiting=2
    )
    async with engine:
        down = asyncio.Event()
        placement = engine.placement
        assert isinstance(placement, ProcessPlacement)
        placement.watchers.append(
            Watcher(lambda _: down.set(), lambda _: None, lambda: None, lambda _: None)
        )
        os.kill(engine_process(engine), signal.SIGKILL)
        await down.wait()
        held = [engine.generate("Go on", SHORT) for _ in range(2)]
        with pytest.raises(OverloadedError) as refusal:
            engine.generate("Go on", SHORT)
        assert refusal.value.retry_after
        held[0].abort()
        with pytest.raises(RequestAbortedError):
            await held[0]
        assert (await held[1]).usage.completion_tokens == SHORT.max_tokens


@pytest.mark.slow
async def test_a_request_that_brings_the_engine_down_twice_is_failed_and_the_others_live() -> None:
    async with simulated("process") as engine:
        bystanders = [engine.generate("Go on", LONG) for _ in range(3)]
        poison = engine.generate("Once upon a time", LONG)
        number = poison._actor.submit.key.request
        for generation in (*bystanders, poison):
            await anext(generation)

        async def crash_whenever_it_runs() -> None:
            frontend = engine.connection.frontend
            assert frontend is not None
            pid = None
            while number in frontend.requests:
                if frontend.requests[number].sent and engine_process(engine) != pid:
                    pid = engine_process(engine)
                    os.kill(pid, signal.SIGKILL)
                await asyncio.sleep(0)

        crashing = asyncio.create_task(crash_whenever_it_runs())
        with pytest.raises(EngineDeadError, match="died twice while running this request"):
            await tokens_of(poison)
        await crashing
        for generation in bystanders:
            assert (await generation).usage.completion_tokens == LONG.max_tokens
        report = await engine.report()
        assert report["held"] == report["running"] == 0


async def test_restarts_pause_until_what_kills_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses = AsyncMock()
    monkeypatch.setattr(asyncio, "sleep", pauses)
    limit = RestartLimit()
    allowed = [await limit.allows_another() for _ in range(MAX_DEATHS + 1)]
    assert allowed == [True] * MAX_DEATHS + [False]
    waited = [call.args[0] for call in pauses.await_args_list]
    assert waited[:3] == [0, 0, 0]
    assert sum(waited) > 2.4  # nine kills in that time ended a server


@pytest.mark.slow
async def test_an_engine_that_dies_again_and_again_is_given_up() -> None:
    async with simulated("process") as engine:
        pid = engine_process(engine)
        for _ in range(MAX_DEATHS):
            os.kill(pid, signal.SIGKILL)
            pid = await next_engine(engine, pid)
        waiting = [engine.generate("Go on", LONG) for _ in range(2)]
        os.kill(pid, signal.SIGKILL)
        for generation in waiting:
            with pytest.raises(
                EngineDeadError, match=f"more than {MAX_DEATHS} times within a minute"
            ):
                await generation
        with pytest.raises(EngineDeadError):
            engine.generate("Go on", SHORT)
        assert not engine.ready


@pytest.mark.slow
async def test_streams_go_on_when_the_scheduler_dies_of_an_exception() -> None:
    async with simulated("process") as engine:
        generation = engine.generate("Go on", LONG)
        await anext(generation)
        before = engine_process(engine)
        placement = engine.placement
        assert isinstance(placement, ProcessPlacement)
        no_such_frontend = ReportRequest(99, 0)
        placement.queues.scheduler.send(encode_report_request(no_such_frontend))
        assert (await generation).usage.completion_tokens == LONG.max_tokens
        assert engine_process(engine) != before


async def test_a_detokenizer_that_fails_ends_the_engine() -> None:
    async with simulated("thread") as engine:
        placement = engine.placement
        assert isinstance(placement, ThreadPlacement)
        assert placement.actors is not None
        generation = engine.generate("Go on", LONG)
        await anext(generation)
        placement.actors.detokenizer.ref.mailbox.send(b"not a message")
        with pytest.raises(EngineDeadError):
            await tokens_of(generation)
        await asyncio.to_thread(placement.actors.scheduler.join)
        await asyncio.sleep(0)  # what its thread has called on the loop runs first
        assert engine.failure is not None
        assert not engine.ready
        with pytest.raises(EngineDeadError):
            engine.generate("Go on", SHORT)


async def test_kill_9_of_the_service_ends_the_engine_too() -> None:
    script = """
import asyncio
from pyengine import AsyncEngine

async def main():
    async with AsyncEngine(device="simulated", placement="process") as engine:
        print(engine.placement.child.process.pid, flush=True)
        await asyncio.Event().wait()

asyncio.run(main())
"""
    service = subprocess.Popen(  # noqa: ASYNC220 - killed below
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
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

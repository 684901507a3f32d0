"""The engine through its front door: whole and streamed, aborted, refused, closed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from pyengine import AsyncEngine, Engine, SamplingParams
from pyengine._core import MailboxFull
from pyengine.actors.scheduler import SchedulerActor
from pyengine.errors import (
    ConfigError,
    EngineDeadError,
    InvalidRequestError,
    ModelLoadError,
    NotReadyError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
)
from pyengine.messages import RequestKey, Submit
from pyengine.placement.thread import ThreadPlacement
from pyengine.queues import SCHEDULER_MAILBOX_BYTES
from tests.answers import assert_nothing_is_left

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        yield engine


def scheduler_of(engine: AsyncEngine) -> SchedulerActor:
    """The scheduler of an engine on threads, to inject faults into."""
    placement = engine.placement
    assert isinstance(placement, ThreadPlacement)
    assert placement.actors is not None
    return placement.actors.scheduler


async def test_whole_and_streamed_are_the_same(engine: AsyncEngine) -> None:
    params = SamplingParams(seed=3, max_tokens=40)
    whole = await engine.generate("Tell me", params)
    streamed = [update async for update in engine.generate("Tell me", params)]
    assert "".join(update.text for update in streamed) == whole.text
    assert [token for update in streamed for token in update.token_ids] == whole.token_ids
    assert whole.finish_reason == "length"
    assert whole.usage.completion_tokens == 40
    await assert_nothing_is_left(engine)


async def test_a_request_runs_to_the_end_of_the_context(engine: AsyncEngine) -> None:
    answer = await engine.generate([5] * 2000, SamplingParams(ignore_eos=True))
    assert answer.usage.completion_tokens == engine.max_context - 2000
    assert answer.finish_reason == "length"


async def test_abort_ends_the_request_and_frees_its_blocks(engine: AsyncEngine) -> None:
    generation = engine.generate("Go on", LONG)
    await anext(generation)
    generation.abort()
    with pytest.raises(RequestAbortedError):
        await generation
    await assert_nothing_is_left(engine)


async def test_a_dropped_handle_aborts(engine: AsyncEngine) -> None:
    async for _ in engine.generate("Go on", LONG):
        break
    gc.collect()
    await assert_nothing_is_left(engine)


async def test_a_cancelled_task_aborts(engine: AsyncEngine) -> None:
    async def ask() -> None:
        await engine.generate("Go on", LONG)

    task = asyncio.create_task(ask())
    while not (await engine.report())["running"]:
        pass
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await assert_nothing_is_left(engine)


async def test_a_deadline_ends_the_request_with_what_it_had(engine: AsyncEngine) -> None:
    generation = engine.generate("Go on", LONG, timeout=0.05)
    tokens = 0
    with pytest.raises(RequestTimeoutError):  # noqa: PT012 - what came before the end counts
        async for update in generation:
            tokens += len(update.token_ids)
    assert tokens > 0
    await assert_nothing_is_left(engine)


async def test_a_stop_string_ends_the_request_and_is_not_shown(engine: AsyncEngine) -> None:
    params = SamplingParams(seed=1, max_tokens=60, ignore_eos=True)
    whole = (await engine.generate("Go on", params)).text
    stop = whole[20:24]
    cut = await engine.generate(
        "Go on", SamplingParams(seed=1, max_tokens=60, ignore_eos=True, stop=(stop,))
    )
    assert cut.text == whole[: whole.index(stop)]
    assert cut.finish_reason == "stop"
    assert cut.stop_string == stop
    await assert_nothing_is_left(engine)


async def test_a_thousand_requests_half_of_them_aborted_leave_nothing(engine: AsyncEngine) -> None:
    params = SamplingParams(max_tokens=5, ignore_eos=True)
    generations = [engine.generate([index % 50 + 3] * 40, params) for index in range(1000)]
    for generation in generations[::2]:
        generation.abort()
    answers = await asyncio.gather(*generations, return_exceptions=True)
    assert not [a for a in answers[1::2] if isinstance(a, BaseException)]
    await assert_nothing_is_left(engine)


async def test_more_than_the_queue_takes_is_refused() -> None:
    async with AsyncEngine(
        device="simulated", max_waiting=4, max_sequences=2, simulated_step_ms=1.0
    ) as engine:
        generations = [engine.generate("Go on", SHORT) for _ in range(200)]
        answers = await asyncio.gather(*generations, return_exceptions=True)
        refused = [answer for answer in answers if isinstance(answer, OverloadedError)]
        assert refused
        assert len(refused) + sum(not isinstance(a, BaseException) for a in answers) == 200
        await assert_nothing_is_left(engine)


def _too_large(submit: Submit, key: RequestKey) -> Submit:
    return msgspec.structs.replace(submit, key=key, tokens=bytes(SCHEDULER_MAILBOX_BYTES))


async def test_a_request_that_no_mailbox_holds_fails_alone(engine: AsyncEngine) -> None:
    frontend = engine.connection.frontend
    assert frontend is not None
    running = engine.generate("Go on", LONG)
    (actor,) = frontend.requests.values()
    with pytest.raises(InvalidRequestError, match="too large"):
        frontend.submit(_too_large(actor.submit, frontend.next_key()))
    # The same behind others, as after a restart.
    frontend._holding = True
    late = frontend.submit(_too_large(actor.submit, frontend.next_key()))
    after = engine.generate("hi", SHORT)
    frontend._holding = False
    frontend.go_on()
    with pytest.raises(InvalidRequestError, match="too large"):
        await late.next_update()
    assert (await after).usage.completion_tokens == 8
    running.abort()
    await assert_nothing_is_left(engine)


async def test_one_stop_string_needs_no_tuple(engine: AsyncEngine) -> None:
    params = SamplingParams(seed=1, max_tokens=60, ignore_eos=True, stop="e")  # type: ignore[arg-type]
    answer = await engine.generate("Go on", params)
    assert answer.stop_string == "e"


async def test_a_report_waits_for_its_reader(engine: AsyncEngine) -> None:
    scheduler = scheduler_of(engine)
    frontend = scheduler.frontends[0].mailbox
    while True:  # this loop does not read meanwhile
        try:
            frontend.send(b"\x92\xa6deltas\x90" + bytes(0))
        except MailboxFull:
            break
    assert (await engine.report())["running"] == 0


async def test_cancelled_while_loading_it_leaves_nothing() -> None:
    engine = AsyncEngine(device="simulated")

    async def use() -> None:
        async with engine:
            raise AssertionError("it cannot be loaded yet")

    task = asyncio.create_task(use())
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    with pytest.raises(EngineDeadError):
        engine.generate("hi")


async def test_closing_answers_everyone() -> None:
    engine = AsyncEngine(device="simulated", simulated_step_ms=1.0)
    await engine.start()
    running = [engine.generate("Go on", LONG) for _ in range(20)]
    await anext(running[0])
    await engine.close()
    for generation in running:
        with pytest.raises(EngineDeadError):
            await generation
    with pytest.raises(EngineDeadError):
        engine.generate("Too late")
    await engine.close()


async def test_before_it_is_loaded_it_says_so() -> None:
    engine = AsyncEngine(device="simulated")
    with pytest.raises(NotReadyError, match="was not started"):
        engine.generate("Too early")
    starting = asyncio.create_task(engine.start())
    await asyncio.sleep(0)
    with pytest.raises(NotReadyError, match="still being loaded"):
        engine.generate("Too early")
    await starting
    await engine.close()


async def test_memory_of_a_failed_load_is_free_while_the_error_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Weights:
        pass

    held: list[weakref.ref[Weights]] = []

    def measure() -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        raise MemoryError

    def load(*_: object) -> None:
        weights = Weights()
        held.append(weakref.ref(weights))
        try:
            measure()
        except MemoryError as error:
            raise ConfigError("there is no room", param="kv_cache_mib") from error

    monkeypatch.setattr("pyengine.engine.load_runner", load)
    engine = AsyncEngine(device="simulated")
    with pytest.raises(ConfigError) as raised:
        await engine.start()
    assert engine.failure is raised.value
    assert [weights() for weights in held] == [None, None]
    await engine.close()


async def test_a_model_that_cannot_be_loaded_says_why(tmp_path: Path) -> None:
    engine = AsyncEngine(tmp_path)
    with pytest.raises(ModelLoadError):
        await engine.start()
    assert isinstance(engine.failure, ModelLoadError)
    with pytest.raises(EngineDeadError):
        engine.generate("hi")
    await engine.close()


async def test_a_failing_step_ends_its_requests_and_no_others(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = scheduler_of(engine).runner
    launch = type(runner).launch

    def fail_once(self: object, buffers: object) -> object:
        monkeypatch.setattr(type(runner), "launch", launch)
        raise RuntimeError("injected")

    monkeypatch.setattr(type(runner), "launch", fail_once)
    with pytest.raises(RequestFailedError, match="a model step failed: RuntimeError: injected"):
        await engine.generate("Go on", SHORT)
    assert (await engine.generate("Go on", SHORT)).usage.completion_tokens == 8
    await assert_nothing_is_left(engine)


async def test_a_dead_scheduler_answers_everyone(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = scheduler_of(engine)
    running = [engine.generate("Go on", LONG) for _ in range(5)]
    await anext(running[0])

    def die() -> bool:
        raise RuntimeError("injected")

    monkeypatch.setattr(scheduler, "step", die)
    for generation in running:
        with pytest.raises(EngineDeadError):
            await generation
    with pytest.raises(EngineDeadError):
        engine.generate("Go on")


async def test_two_engines_live_side_by_side() -> None:
    async with (
        AsyncEngine(device="simulated", simulated_step_ms=0.5) as one,
        AsyncEngine(device="simulated", simulated_step_ms=0.5) as two,
    ):
        answers = await asyncio.gather(
            *[engine.generate("Go on", SHORT) for engine in (one, two) for _ in range(20)]
        )
    assert len({tuple(answer.token_ids) for answer in answers}) == 1


def test_the_blocking_face() -> None:
    with Engine() as engine:
        greedy = SamplingParams(temperature=0, max_tokens=40)
        question = [{"role": "user", "content": "What is the capital of Italy?"}]
        answer = engine.chat(question, greedy)
        assert "Rome" in answer.text
        assert "".join(u.text for u in engine.stream_chat(question, greedy)) == answer.text
        both = engine.generate(["One", "Two"], SHORT)
        assert [b.text for b in both] == [engine.generate(p, SHORT).text for p in ("One", "Two")]
        for _ in engine.stream("One", LONG):
            break
        assert engine.generate([300, 301], SHORT).usage.prompt_tokens == 2
    with pytest.raises(EngineDeadError):
        engine.generate("One", SHORT)
    engine.close()

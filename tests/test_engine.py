"""The engine through its front door: whole and streamed, aborted, refused, closed."""

import asyncio
import gc
import weakref
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

import pyengine
from pyengine import AsyncEngine, Engine, EngineConfig, SamplingParams
from pyengine._core import MailboxFull
from pyengine.actors.scheduler import SchedulerActor
from pyengine.engine import SCHEDULER_MAILBOX_BYTES
from pyengine.errors import (
    ConfigError,
    ContextLengthError,
    EngineDeadError,
    InvalidGrammarError,
    InvalidRequestError,
    ModelLoadError,
    NotReadyError,
    OverloadedError,
    RequestAbortedError,
    RequestTimeoutError,
)
from pyengine.grammar import choice
from pyengine.messages import RequestKey, Submit
from pyengine.placement.thread import ThreadPlacement
from tests.idle import assert_nothing_is_left

LONG = SamplingParams(temperature=0, max_tokens=1500, ignore_eos=True)
SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        yield engine


def scheduler_of(engine: AsyncEngine) -> SchedulerActor:
    """The scheduler of an engine on threads, to inject faults into."""
    placement = engine._connection.placement
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


async def test_what_does_not_fit_the_context_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(ContextLengthError, match=rf"{engine.max_context}.*{engine.max_context}"):
        engine.generate([5] * engine.max_context)
    with pytest.raises(ContextLengthError, match="at most"):
        engine.generate([5], SamplingParams(max_tokens=engine.max_context))


@pytest.mark.parametrize(
    ("prompt", "params", "param"),
    [
        ("", SamplingParams(), "prompt"),
        ([10**6], SamplingParams(), "prompt"),
        ([-1], SamplingParams(), "prompt"),
        (["a", "b"], SamplingParams(), "prompt"),
        (b"abcd", SamplingParams(), "prompt"),
        (5, SamplingParams(), "prompt"),
        ("hi", {"temperature": 1}, "params"),
        ("hi", SamplingParams(temperature=-1), "temperature"),
        ("hi", SamplingParams(temperature=float("nan")), "temperature"),
        ("hi", SamplingParams(top_p=0), "top_p"),
        ("hi", SamplingParams(stop=("",)), "stop"),
        ("hi", SamplingParams(max_tokens=0), "max_tokens"),
        ("hi", SamplingParams(max_tokens=2.0), "max_tokens"),  # type: ignore[arg-type]
        ("hi", SamplingParams(min_tokens=2**32), "min_tokens"),
        ("hi", SamplingParams(min_tokens=9, max_tokens=8), "min_tokens"),
        ("hi", SamplingParams(seed=1.5), "seed"),  # type: ignore[arg-type]
        ("hi", SamplingParams(stop=("a", 1)), "stop"),  # type: ignore[arg-type]
        ("hi", SamplingParams(stop_token_ids=(10**6,)), "stop_token_ids"),
        ("hi", SamplingParams(stop_token_ids=tuple(range(200))), "stop_token_ids"),
    ],
)
async def test_what_is_out_of_range_is_refused_by_name(
    engine: AsyncEngine, prompt: str | list[int], params: SamplingParams, param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        engine.generate(prompt, params)
    assert refusal.value.param == param


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("priority", 2**31),
        ("priority", 1.5),
        ("timeout", -1.0),
        ("timeout", float("inf")),
        ("timeout", "5"),
        ("prediction", 5),
        ("prediction", [10**6]),
        ("tenant", 3),
        ("cache_salt", 3),
    ],
)
async def test_options_out_of_range_are_refused(
    engine: AsyncEngine, option: str, value: object
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        engine.generate("hi", SHORT, **{option: value})  # type: ignore[arg-type]
    assert refusal.value.param == option
    await assert_nothing_is_left(engine)


async def test_a_grammar_that_cannot_be_sent_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(InvalidGrammarError) as refusal:
        engine.generate("hi", SHORT, grammar=choice(["x" * 2**20]))
    assert refusal.value.param == "grammar"
    for grammar, close in (({"type": "object"}, False), (None, True), (choice(["a"]), 1)):
        with pytest.raises(InvalidRequestError, match="grammar"):
            engine.generate("hi", SHORT, grammar=grammar, close_grammar=close)  # type: ignore[arg-type]
    await assert_nothing_is_left(engine)


def _too_large(submit: Submit, key: RequestKey) -> Submit:
    return msgspec.structs.replace(submit, key=key, tokens=bytes(SCHEDULER_MAILBOX_BYTES))


async def test_a_request_that_no_mailbox_holds_fails_alone(engine: AsyncEngine) -> None:
    frontend = engine._connection.frontend
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
    frontend._go_on()
    with pytest.raises(InvalidRequestError, match="too large"):
        await late.next_update()
    assert (await after).usage.completion_tokens == 8
    running.abort()
    await assert_nothing_is_left(engine)


@pytest.mark.parametrize(
    ("messages", "param"),
    [
        ([], "messages"),
        (["hi"], "messages[0]"),
        ([{"role": "usr", "content": "hi"}], "messages[0].role"),
        ([{"role": "user"}], "messages[0].content"),
        ([{"role": "user", "content": "hi", "foo": 1}], "messages[0].foo"),
    ],
)
async def test_conversations_that_are_none_are_refused_by_name(
    engine: AsyncEngine, messages: list[dict[str, object]], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        engine.chat(messages, SHORT)
    assert refusal.value.param == param


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


async def test_what_a_failed_load_held_is_free_while_the_error_is_kept(
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
    with pytest.raises(EngineDeadError):
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


def test_settings_are_checked() -> None:
    with pytest.raises(ConfigError, match="nonsense"):
        AsyncEngine(nonsense=1)
    with pytest.raises(ConfigError, match="interactive, local, server"):
        AsyncEngine(mode="huge")
    with pytest.raises(ConfigError, match="max_sequences"):
        AsyncEngine(max_sequences="8")
    with pytest.raises(ConfigError, match="prefix_cache"):
        AsyncEngine(prefix_cache="no")
    with pytest.raises(ConfigError, match="simulated_step_ms"):
        AsyncEngine(simulated_step_ms=float("inf"))
    with pytest.raises(ConfigError, match="thread or process"):
        AsyncEngine(placement="threads")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="either"):
        AsyncEngine("model", config=EngineConfig())
    with pytest.raises(ConfigError, match="max_tokens_per_step"):
        EngineConfig(max_sequences=64, max_tokens_per_step=32).limits.max_sequences  # noqa: B018


def test_settings_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYENGINE_MODE", "server")
    monkeypatch.setenv("PYENGINE_MAX_SEQUENCES", "12")
    monkeypatch.setenv("PYENGINE_PREFIX_CACHE", "false")
    config = EngineConfig.from_environment(max_sequences=13)
    assert (config.mode, config.max_sequences, config.prefix_cache) == ("server", 13, False)
    monkeypatch.setenv("PYENGINE_MAX_SEQUENCES", "many")
    with pytest.raises(ConfigError, match="PYENGINE_MAX_SEQUENCES='many'"):
        EngineConfig.from_environment()
    monkeypatch.delenv("PYENGINE_MAX_SEQUENCES")
    monkeypatch.setenv("PYENGINE_NONSENSE", "1")
    with pytest.raises(ConfigError, match="PYENGINE_NONSENSE"):
        EngineConfig.from_environment()


def test_a_name_that_is_not_there() -> None:
    with pytest.raises(AttributeError):
        pyengine.nonsense  # noqa: B018

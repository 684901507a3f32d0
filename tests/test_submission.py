"""What the engine takes, and what it refuses by name before anything is sent."""

from collections.abc import AsyncIterator

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ContextLengthError, InvalidGrammarError, InvalidRequestError
from pyengine.grammar import choice
from tests.answers import assert_nothing_is_left

SHORT = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(device="simulated", simulated_step_ms=1.0) as engine:
        yield engine


async def test_prompt_beyond_the_context_is_refused(engine: AsyncEngine) -> None:
    with pytest.raises(ContextLengthError, match=rf"{engine.max_context}.*{engine.max_context}"):
        engine.generate([5] * engine.max_context)
    with pytest.raises(ContextLengthError, match="at most"):
        engine.generate([5], SamplingParams(max_tokens=engine.max_context))


async def test_wrong_keyword_of_a_chat_is_refused_by_name(engine: AsyncEngine) -> None:
    question = [{"role": "user", "content": "hi"}]
    for params in ({"temperature": 0}, {}):
        with pytest.raises(InvalidRequestError, match=r"'params' must be SamplingParams\(\.\.\.\)"):
            engine.chat(question, params)  # type: ignore[arg-type]
    for messages in ("hi", question[0]):
        with pytest.raises(InvalidRequestError, match="a list of dicts with 'role' and 'content'"):
            engine.chat(messages)  # type: ignore[arg-type]
    with pytest.raises(InvalidRequestError, match="there are: assistant, developer, "):
        engine.chat([{"role": "boss", "content": "hi"}])


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
        ("hi", SamplingParams(max_tokens=-1), "max_tokens"),
        ("hi", SamplingParams(max_tokens=2.0), "max_tokens"),  # type: ignore[arg-type]
        ("hi", SamplingParams(min_tokens=2**32), "min_tokens"),
        ("hi", SamplingParams(min_tokens=9, max_tokens=8), "min_tokens"),
        ("hi", SamplingParams(seed=1.5), "seed"),  # type: ignore[arg-type]
        ("hi", SamplingParams(stop=("a", 1)), "stop"),  # type: ignore[arg-type]
        ("hi", SamplingParams(stop_token_ids=(10**6,)), "stop_token_ids"),
        ("hi", SamplingParams(stop_token_ids=tuple(range(200))), "stop_token_ids"),
    ],
)
async def test_option_out_of_range_is_refused_by_name(
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

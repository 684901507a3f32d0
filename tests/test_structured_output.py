"""A thousand requests under schemas of real services: what ends by itself parses and validates."""

import asyncio
from collections.abc import AsyncIterator
from itertools import cycle, islice
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.chat.generation import ChatGeneration
from pyengine.grammar import Grammar, json_schema
from pyengine.http.serving.server import HttpServer
from tests.answers import answers, assert_nothing_is_left, begins, streamed
from tests.schemas import SCHEMAS
from tests.schemas.checking import check

# How many requests each test makes; a thousand together.
CLOSED, OPEN, STOPPED, CROWDED, OVER_HTTP = 250, 250, 150, 200, 150


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server", max_sequences=64) as engine:
        yield engine


def names(count: int) -> list[str]:
    """So many names of schemas, in turn."""
    return list(islice(cycle(SCHEMAS), count))


def question(name: str) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"Show me a {name}."}]


def grammar_of(name: str) -> Grammar:
    return json_schema(SCHEMAS[name])


def ask(
    engine: AsyncEngine, name: str, seed: int, close: bool = False, **params: Any
) -> ChatGeneration:
    """Ask for an answer at temperature 1."""
    return engine.chat(
        question(name),
        SamplingParams(seed=seed, **params),
        grammar=grammar_of(name),
        close_grammar=close,
    )


def test_there_are_enough_schemas() -> None:
    assert len(SCHEMAS) >= 50
    assert CLOSED + OPEN + STOPPED + CROWDED + OVER_HTTP == 1000


@pytest.mark.slow
async def test_within_max_tokens_every_answer_is_whole(engine: AsyncEngine) -> None:
    asked = names(CLOSED)
    given = await answers(
        ask(engine, name, seed, close=True, max_tokens=(160, 240)[seed % 2])
        for seed, name in enumerate(asked)
    )
    for name, answer in zip(asked, given, strict=True):
        assert answer.finish_reason == "stop", (name, answer.text)
        check(name, answer.text)
    # The cache has room for all: only tokens that led too far made requests begin anew.
    assert (await engine.report())["preemptions"] > 0
    await assert_nothing_is_left(engine)


async def test_on_a_device_that_is_a_step_ahead() -> None:
    async with AsyncEngine(device="simulated", simulated_step_ms=0.5, mode="server") as engine:
        asked = names(len(SCHEMAS))
        given = await answers(
            ask(engine, name, seed, close=True, max_tokens=240) for seed, name in enumerate(asked)
        )
        for name, answer in zip(asked, given, strict=True):
            assert answer.finish_reason == "stop", (name, answer.text)
            check(name, answer.text)
        assert (await engine.report())["preemptions"] > 0
        await assert_nothing_is_left(engine)


@pytest.mark.slow
async def test_answer_that_does_not_fit_is_said_to_be_cut(engine: AsyncEngine) -> None:
    asked = names(OPEN)
    given = await answers(ask(engine, name, seed, max_tokens=96) for seed, name in enumerate(asked))
    for name, answer in zip(asked, given, strict=True):
        if answer.finish_reason == "stop":
            check(name, answer.text)
        else:
            assert answer.usage.completion_tokens == 96
            assert begins(grammar_of(name), answer.text.rstrip("\ufffd"))
    cut = [answer for answer in given if answer.finish_reason == "length"]
    assert 0 < len(cut) < len(given)
    await assert_nothing_is_left(engine)


@pytest.mark.slow
async def test_stop_strings_cut_what_is_otherwise_whole(engine: AsyncEngine) -> None:
    asked = names(STOPPED)
    stops = (", ", '"}', "]", "e")
    given = await answers(
        ask(
            engine,
            name,
            seed,
            close=True,
            max_tokens=240,
            stop=(stops[seed % 4], "\n"),
            include_stop=seed % 3 == 0,
        )
        for seed, name in enumerate(asked)
    )
    for seed, (name, answer) in enumerate(zip(asked, given, strict=True)):
        assert answer.finish_reason == "stop"
        if answer.stop_string is None:
            check(name, answer.text)
            continue
        # White space of one line has no line break, and strings escape theirs.
        assert answer.stop_string == stops[seed % 4]
        assert answer.text.count(answer.stop_string) == (seed % 3 == 0)
        assert begins(grammar_of(name), answer.text)
    stopped = [answer for answer in given if answer.stop_string is not None]
    assert 0 < len(stopped) < len(given)
    await assert_nothing_is_left(engine)


@pytest.mark.slow
async def test_in_a_cache_too_small_for_all_of_them() -> None:
    # What is admitted together grows beyond the cache, so that some have to begin anew.
    async with AsyncEngine(mode="server", max_sequences=32, num_blocks=64) as engine:
        asked = names(CROWDED)
        given = await answers(
            ask(engine, name, seed, close=True, max_tokens=240) for seed, name in enumerate(asked)
        )
        for name, answer in zip(asked, given, strict=True):
            assert answer.finish_reason == "stop", (name, answer.text)
            check(name, answer.text)
        assert (await engine.report())["preemptions"] > 0
        await assert_nothing_is_left(engine)


@pytest.mark.slow
async def test_two_choices_over_http(engine: AsyncEngine) -> None:
    server = HttpServer(engine, port=0)
    await server.start()
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=100
    ) as client:

        async def ask_for_two(name: str, seed: int) -> list[tuple[str | None, str]]:
            """Finish reason and text of each choice."""
            fields: dict[str, Any] = {
                "model": engine.model_name,
                "messages": question(name),
                "seed": seed,
                "n": 2,
                "max_tokens": 240,
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "answer", "strict": True, "schema": SCHEMAS[name]},
                },
                "extra_body": {"structured_outputs": {"close_within_max_tokens": True}},
            }
            if seed % 2:
                made = await client.chat.completions.create(**fields)
                return [(choice.finish_reason, choice.message.content) for choice in made.choices]
            texts, reasons = ["", ""], [None, None]
            async for chunk in await client.chat.completions.create(**fields, stream=True):
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    reasons[choice.index] = choice.finish_reason or reasons[choice.index]
            return list(zip(reasons, texts, strict=True))

        asked = names(OVER_HTTP)
        given = await asyncio.gather(*(ask_for_two(n, seed) for seed, n in enumerate(asked)))
    await server.stop(0)
    for name, choices in zip(asked, given, strict=True):
        assert len(choices) == 2
        for reason, text in choices:
            assert reason == "stop", (name, text)
            check(name, text)
    different = [one for one, other in given if one != other]
    assert different
    await assert_nothing_is_left(engine)


async def test_a_stream_ends_with_one_reason(engine: AsyncEngine) -> None:
    answer = await streamed(ask(engine, "classification", 1))
    assert answer.finish_reason == "stop"
    check("classification", answer.text)

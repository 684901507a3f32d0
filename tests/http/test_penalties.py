"""Penalties, biases and bad words over HTTP, with the real engine behind it."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine, SamplingParams

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
# What OpenAI's client takes, what it takes as an extension, and what the library calls it.
CASES: list[tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = [
    ({"presence_penalty": 1.5}, {}, {"presence_penalty": 1.5}),
    ({"frequency_penalty": 2, "temperature": 0.7, "seed": 4}, {}, {"frequency_penalty": 2.0}),
    ({"logit_bias": {"84": -100, "3": 2}}, {}, {"logit_bias": {84: -100.0, 3: 2.0}}),
    ({}, {"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    ({}, {"bad_words": ["Paris", "of"]}, {"bad_words": ("Paris", "of")}),
]


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


async def test_penalties_equal_the_librarys(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    model = engine.model_name
    for fields, extra, params in CASES:
        given: dict[str, Any] = {"max_tokens": 24, "temperature": 0.0} | fields
        sampling = SamplingParams(
            max_tokens=24,
            temperature=given["temperature"],
            seed=given.get("seed"),
            **params,
        )
        wanted = await engine.chat(QUESTION, sampling)
        answer = await client.chat.completions.create(
            model=model, messages=QUESTION, extra_body=extra, **given
        )
        assert answer.choices[0].message.content == wanted.text
        stream = await client.chat.completions.create(
            model=model, messages=QUESTION, stream=True, extra_body=extra, **given
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream]
        assert "".join(pieces) == wanted.text

        continued = await engine.generate("Once upon a time", sampling)
        completion = await client.completions.create(
            model=model, prompt="Once upon a time", extra_body=extra, **given
        )
        assert completion.choices[0].text == continued.text


async def test_banned_words_do_not_come(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(
        model=engine.model_name,
        messages=QUESTION,
        temperature=0,
        extra_body={"bad_words": ["Paris"]},
    )
    assert "Paris" not in (answer.choices[0].message.content or "")


async def test_tokens_beyond_the_vocabulary_are_named(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.completions.create(
            model=engine.model_name, prompt="x", logit_bias={"1000000": 1}
        )
    assert caught.value.param == "logit_bias"
    assert "1000000" in caught.value.message

"""Several choices together with all else that a request may ask for, with the real engine."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine

QUESTION: Any = [{"role": "user", "content": "What will the weather be like?"}]
TOOL: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Paris", "Rome", "Oslo", "Bern"]}},
            "required": ["city"],
            "additionalProperties": False,
        },
        "strict": True,
    },
}
USAGE: Any = {"include_usage": True}
N = 4


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


async def _streamed(stream: Any) -> tuple[list[dict[str, Any]], Any]:
    """Each choice put together, and the usage at the end."""
    made: list[dict[str, Any]] = [
        {"text": "", "calls": [], "entries": [], "reasons": []} for _ in range(N)
    ]
    usage = None
    async for chunk in stream:
        assert usage is None, "it comes last"
        usage = chunk.usage
        for choice in chunk.choices:
            one = made[choice.index]
            one["text"] += choice.delta.content or ""
            for call in choice.delta.tool_calls or []:
                if call.id is not None:
                    one["calls"].append([call.function.name, ""])
                one["calls"][call.index][1] += call.function.arguments or ""
            if choice.logprobs is not None:
                one["entries"] += choice.logprobs.content
            if choice.finish_reason is not None:
                one["reasons"].append(choice.finish_reason)
    return made, usage


@pytest.mark.parametrize(
    "fields",
    [
        {"stop": ["is"], "max_tokens": 20},
        {"tools": [TOOL], "tool_choice": "required", "max_tokens": 80},
        {"tools": [TOOL], "max_tokens": 30},
        {"max_tokens": 5},
    ],
    ids=["stop", "required", "auto", "length"],
)
async def test_a_chat(
    engine: AsyncEngine, client: openai.AsyncOpenAI, fields: dict[str, Any]
) -> None:
    given: dict[str, Any] = {
        "model": engine.model_name,
        "messages": QUESTION,
        "n": N,
        "seed": 5,
        "temperature": 2,
        "logprobs": True,
        "top_logprobs": 2,
        **fields,
    }
    whole = await client.chat.completions.create(**given)
    assert [choice.index for choice in whole.choices] == list(range(N))
    streamed, usage = await _streamed(
        await client.chat.completions.create(stream=True, stream_options=USAGE, **given)
    )
    for choice, one in zip(whole.choices, streamed, strict=True):
        message = choice.message
        assert one["text"] == (message.content or "")
        calls: list[Any] = message.tool_calls or []
        assert one["calls"] == [[call.function.name, call.function.arguments] for call in calls]
        assert one["reasons"] == [choice.finish_reason]
        assert choice.logprobs is not None
        assert one["entries"] == choice.logprobs.content
        assert all(len(entry.top_logprobs) == 2 for entry in one["entries"])
        if not calls:
            written = "".join(entry.token for entry in one["entries"])
            assert written.startswith(one["text"].rstrip("\N{REPLACEMENT CHARACTER}"))
    if fields.get("tool_choice") == "required":
        assert {choice.finish_reason for choice in whole.choices} == {"tool_calls"}
        assert len({one["calls"][0][1] for one in streamed}) > 1
    else:
        assert len({one["text"] for one in streamed}) > 1, "each has a seed of its own"
    # Each choice is what the request with its seed alone gives; the prompt is counted once.
    alone = [
        await client.chat.completions.create(**{**given, "n": 1, "seed": 5 + at}) for at in range(N)
    ]
    for choice, single in zip(whole.choices, alone, strict=True):
        assert single.choices[0].message.content == choice.message.content
        assert single.choices[0].logprobs == choice.logprobs
    spent = [single.usage for single in alone]
    assert whole.usage is not None
    assert usage is not None
    for each in (whole.usage, usage):
        assert {each.prompt_tokens} == {one.prompt_tokens for one in spent if one is not None}
        assert each.completion_tokens == sum(one.completion_tokens for one in spent if one)
        assert each.total_tokens == each.prompt_tokens + each.completion_tokens


@pytest.mark.parametrize("stream", [False, True])
async def test_texts(engine: AsyncEngine, client: openai.AsyncOpenAI, stream: bool) -> None:
    prompts = ["The capital of France is", "Rome is"]
    given: dict[str, Any] = {
        "model": engine.model_name,
        "prompt": prompts,
        "n": 2,
        "seed": 5,
        "stop": ["."],
        "max_tokens": 12,
        "logprobs": 2,
    }
    texts, tokens = [""] * 4, [""] * 4
    if stream:
        async for chunk in await client.completions.create(
            stream=True, stream_options=USAGE, **given
        ):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                if choice.logprobs is not None:
                    tokens[choice.index] += "".join(choice.logprobs.tokens or ())
    else:
        answer = await client.completions.create(**given)
        usage = answer.usage
        for choice in answer.choices:
            texts[choice.index] = choice.text
            assert choice.logprobs is not None
            tokens[choice.index] = "".join(choice.logprobs.tokens or ())
    assert all(told.startswith(text) for told, text in zip(tokens, texts, strict=True))
    alone = [
        await client.completions.create(**{**given, "prompt": prompt, "n": 1, "seed": 5 + at})
        for prompt in prompts
        for at in range(2)
    ]
    assert texts == [single.choices[0].text for single in alone]
    spent = [single.usage for single in alone if single.usage is not None]
    assert usage is not None
    assert usage.prompt_tokens == spent[0].prompt_tokens + spent[2].prompt_tokens
    assert usage.completion_tokens == sum(each.completion_tokens for each in spent)

"""Log-probabilities over HTTP: chats and texts, whole and streaming, with the real engine."""

import math
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine
from pyengine.demo import MODEL_PATH

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
PROMPT = "The capital of France is"


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


@torch.inference_mode()
def table(prompt: list[int], answer: list[int]) -> torch.Tensor:
    """transformers' log-softmax in the place of each token of the answer."""
    model = LlamaForCausalLM.from_pretrained(MODEL_PATH, dtype=torch.float32).eval()
    logits: torch.Tensor = model(torch.tensor([prompt + answer])).logits[0]
    return logits.double().log_softmax(-1)[len(prompt) - 1 : -1]


async def test_a_conversation(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    given: dict[str, Any] = {
        "model": engine.model_name,
        "messages": QUESTION,
        "temperature": 0,
        "max_tokens": 30,
        "logprobs": True,
        "top_logprobs": 4,
    }
    answer = await client.chat.completions.create(**given)
    choice = answer.choices[0]
    assert choice.logprobs is not None
    entries = choice.logprobs.content
    assert entries
    assert "".join(entry.token for entry in entries) == choice.message.content
    assert b"".join(bytes(e.bytes or ()) for e in entries).decode() == choice.message.content
    ids = [engine.tokenizer.encode(e.token, add_special_tokens=False) for e in entries]
    rows = table(engine.render(QUESTION), [i for each in ids for i in each])
    assert len(rows) == len(entries)
    for row, entry in zip(rows, entries, strict=True):
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            row.sort(descending=True).values[:4].tolist(), abs=2e-3
        )
        # Greedily the likeliest comes.
        assert (entry.token, entry.logprob) == (
            entry.top_logprobs[0].token,
            entry.top_logprobs[0].logprob,
        )

    streamed: list[Any] = []
    text = ""
    async for chunk in await client.chat.completions.create(stream=True, **given):
        part = chunk.choices[0]
        text += part.delta.content or ""
        if part.logprobs is not None:
            streamed += part.logprobs.content or []
            told = "".join(entry.token for entry in streamed)
            assert told == text
    assert text == choice.message.content
    assert [e.model_dump() for e in streamed] == [e.model_dump() for e in entries]


async def test_a_text(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    given: dict[str, Any] = {
        "model": engine.model_name,
        "prompt": PROMPT,
        "temperature": 0.9,
        "seed": 6,
        "max_tokens": 20,
        "logprobs": 3,
        "n": 2,
    }
    answer = await client.completions.create(**given)
    for choice in answer.choices:
        told = choice.logprobs
        assert told is not None
        assert told.tokens
        assert told.token_logprobs
        assert told.top_logprobs
        assert told.text_offset
        assert "".join(told.tokens) == choice.text
        offset = 0
        for at, token in enumerate(told.tokens):
            assert told.text_offset[at] == offset
            offset += len(token)
            top = told.top_logprobs[at]
            assert top[token] == told.token_logprobs[at]
            assert len(top) in (3, 4)
        ids = [engine.tokenizer.encode(token, add_special_tokens=False) for token in told.tokens]
        if all(len(each) == 1 for each in ids):
            rows = table(engine.tokenizer.encode(PROMPT), [each[0] for each in ids])
            likely = [float(row[each[0]]) for row, each in zip(rows, ids, strict=True)]
            assert told.token_logprobs == pytest.approx(likely, abs=2e-3)

    parts: dict[int, list[Any]] = {0: [], 1: []}
    async for chunk in await client.completions.create(stream=True, **given):
        if chunk.choices[0].logprobs is not None:
            parts[chunk.choices[0].index].append(chunk.choices[0].logprobs)
    for choice in answer.choices:
        assert choice.logprobs is not None
        for name in ("tokens", "token_logprobs", "text_offset", "top_logprobs"):
            joined = [value for part in parts[choice.index] for value in getattr(part, name)]
            assert joined == getattr(choice.logprobs, name), name


async def test_a_stop_string_cuts_text_and_entries_alike(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    given: dict[str, Any] = {
        "model": engine.model_name,
        "messages": QUESTION,
        "temperature": 0,
        "logprobs": True,
    }
    whole = await client.chat.completions.create(**given)
    assert whole.choices[0].message.content
    stop = whole.choices[0].message.content[12:20]
    for stream in (False, True):
        if stream:
            entries: list[Any] = []
            text = ""
            async for chunk in await client.chat.completions.create(
                stop=stop, stream=True, **given
            ):
                text += chunk.choices[0].delta.content or ""
                if chunk.choices[0].logprobs is not None:
                    entries += chunk.choices[0].logprobs.content or []
        else:
            answer = await client.chat.completions.create(stop=stop, **given)
            assert answer.choices[0].logprobs is not None
            entries = answer.choices[0].logprobs.content or []
            text = answer.choices[0].message.content or ""
        assert text
        told = "".join(entry.token for entry in entries)
        assert told.startswith(text)
        assert len(told) - len(entries[-1].token) < len(text)
        assert all(entry.top_logprobs == [] for entry in entries)


async def test_zero_likely_tokens_and_none_at_all(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    given: dict[str, Any] = {"model": engine.model_name, "prompt": PROMPT, "max_tokens": 4}
    answer = await client.completions.create(logprobs=0, **given)
    told = answer.choices[0].logprobs
    assert told is not None
    assert told.top_logprobs is not None
    assert told.tokens is not None
    assert [list(top) for top in told.top_logprobs] == [[token] for token in told.tokens]
    assert all(value <= 0 and math.isfinite(value) for value in told.token_logprobs or ())
    answer = await client.completions.create(**given)
    assert answer.choices[0].logprobs is None


async def test_with_a_tool_all_that_was_written_is_told(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    tool: Any = {
        "type": "function",
        "function": {
            "name": "weather",
            "parameters": {
                "type": "object",
                "properties": {"city": {"enum": ["Paris", "Rome"]}},
                "required": ["city"],
                "additionalProperties": False,
            },
        },
    }
    given: dict[str, Any] = {
        "model": engine.model_name,
        "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
        "tools": [tool],
        "tool_choice": "required",
        "temperature": 0,
        "max_tokens": 80,
        "logprobs": True,
        "top_logprobs": 1,
    }
    answer = await client.chat.completions.create(**given)
    choice = answer.choices[0]
    assert choice.message.tool_calls
    assert choice.logprobs is not None
    written = "".join(entry.token for entry in choice.logprobs.content or ())
    assert choice.message.tool_calls[0].function.name in written
    streamed: list[str] = []
    async for chunk in await client.chat.completions.create(stream=True, **given):
        if chunk.choices[0].logprobs is not None:
            streamed += [entry.token for entry in chunk.choices[0].logprobs.content or ()]
    assert "".join(streamed) == written


@pytest.mark.parametrize(
    ("path", "fields", "param"),
    [
        ("chat/completions", {"top_logprobs": 2}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ("chat/completions", {"logprobs": True, "top_logprobs": -1}, "top_logprobs"),
        ("chat/completions", {"logprobs": 3}, "logprobs"),
        ("chat/completions", {"logprobs": True, "include_reasoning": False}, "include_reasoning"),
        ("completions", {"logprobs": 6}, "logprobs"),
        ("completions", {"logprobs": -1}, "logprobs"),
        ("completions", {"logprobs": True}, "logprobs"),
        ("completions", {"top_logprobs": 2}, "top_logprobs"),
    ],
)
async def test_options_that_do_not_go_together_are_named(
    engine: AsyncEngine, http: httpx.AsyncClient, path: str, fields: dict[str, Any], param: str
) -> None:
    asked = {"messages": QUESTION} if path.startswith("chat") else {"prompt": PROMPT}
    answer = await http.post(f"/v1/{path}", json={"model": engine.model_name, **asked, **fields})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param

"""Token ids in answers, as vLLM tells them."""

from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine

HELLO: Any = [{"role": "user", "content": "Say: fünf \U0001f44b!"}]
WANTED = {
    "return_token_ids": True, "return_tokens_as_token_ids": True, "ignore_eos": True,
    "skip_special_tokens": False,
}  # fmt: skip


@pytest.fixture
def engine() -> AsyncEngine:
    return AsyncEngine()


async def test_in_a_chat(client: openai.AsyncOpenAI, engine: AsyncEngine) -> None:
    given: Any = {
        "model": engine.model_name, "messages": HELLO, "temperature": 0, "max_tokens": 12,
        "logprobs": True, "top_logprobs": 2, "extra_body": WANTED,
    }  # fmt: skip
    answer: Any = await client.chat.completions.create(**given)
    (choice,) = answer.choices
    assert len(choice.token_ids) == answer.usage.completion_tokens == 12
    assert len(answer.prompt_token_ids) == answer.usage.prompt_tokens
    names = [entry.token for entry in choice.logprobs.content]
    assert set(names) <= {f"token_id:{token}" for token in choice.token_ids}
    assert bytes(choice.logprobs.content[0].bytes).decode() == names[0]
    assert all(
        top.token.startswith("token_id:")
        for entry in choice.logprobs.content
        for top in entry.top_logprobs
    )
    chunks: list[Any] = [
        chunk async for chunk in await client.chat.completions.create(**given, stream=True)
    ]
    assert chunks[0].prompt_token_ids == answer.prompt_token_ids
    told = [t for chunk in chunks for t in getattr(chunk.choices[0], "token_ids", None) or ()]
    assert told == choice.token_ids
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == choice.message.content


async def test_in_a_completion(client: openai.AsyncOpenAI, engine: AsyncEngine) -> None:
    prompt = await engine.encode("One, two,")
    given: Any = {
        "model": engine.model_name, "prompt": [prompt, [5, 6, 7]], "temperature": 0,
        "max_tokens": 9, "logprobs": 1, "extra_body": WANTED,
    }  # fmt: skip
    answer: Any = await client.completions.create(**given)
    first, second = answer.choices
    assert first.prompt_token_ids == prompt
    assert second.prompt_token_ids == [5, 6, 7]
    assert first.logprobs.tokens == [f"token_id:{token}" for token in first.token_ids]
    told: dict[int, list[int]] = {0: [], 1: []}
    prompts: dict[int, Any] = {}
    async for chunk in await client.completions.create(**given, stream=True):
        (choice,) = chunk.choices
        told[choice.index] += getattr(choice, "token_ids", None) or []
        if (said := getattr(choice, "prompt_token_ids", None)) is not None:
            prompts[choice.index] = said
    assert told == {0: first.token_ids, 1: second.token_ids}
    assert prompts == {0: first.prompt_token_ids, 1: second.prompt_token_ids}
    echoed: Any = await client.completions.create(**given, echo=True)
    tokens = [*first.prompt_token_ids, *first.token_ids]
    assert echoed.choices[0].logprobs.tokens == [f"token_id:{token}" for token in tokens]


async def test_nothing_is_told_unasked(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    body = {"prompt": "One", "max_tokens": 2, "return_token_ids": False}
    answer = await http.post("/v1/completions", json=body)
    assert "token_ids" not in answer.text
    # llama.cpp's name for the same.
    answer = await http.post("/v1/completions", json={"prompt": "One", "return_tokens": True})
    assert "prompt_token_ids" in answer.json()["choices"][0]

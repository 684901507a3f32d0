"""Text completions over real HTTP."""

import json
from typing import Any

import httpx
import openai
import pytest

from tests.http.fake_engine import ANSWER, FakeEngine

MODEL = "org/fake"


async def test_whole_answer(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.completions.create(model=MODEL, prompt="hello", max_tokens=200)
    assert answer.choices[0].text == ANSWER
    assert answer.choices[0].finish_reason == "stop"
    assert engine.tokenizer.decode(engine.asked[0].prompt) == "hello"


async def test_sixteen_tokens_unless_asked(client: openai.AsyncOpenAI) -> None:
    answer = await client.completions.create(model=MODEL, prompt="hello")
    assert answer.choices[0].text == ANSWER[:16]
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize(
    ("prompt", "prompts"),
    [("hello", 1), (["hello", "world"], 2), ([5, 6, 7], 1), ([[5, 6], [7]], 2)],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_kinds_of_prompt(
    http: httpx.AsyncClient, engine: FakeEngine, prompt: Any, prompts: int, stream: bool
) -> None:
    body = {"model": MODEL, "prompt": prompt, "max_tokens": 200, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = await http.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
    if stream:
        events = answer.text.split("\n\n")
        assert events[-2:] == ["data: [DONE]", ""]
        chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
        usage = chunks.pop()["usage"]
        choices = [chunk["choices"][0] for chunk in chunks]
        texts = ["".join(c["text"] for c in choices if c["index"] == i) for i in range(prompts)]
        finished = [c["index"] for c in choices if c["finish_reason"] == "stop"]
        assert sorted(finished) == list(range(prompts))
    else:
        usage = answer.json()["usage"]
        texts = [choice["text"] for choice in answer.json()["choices"]]
    assert texts == [ANSWER] * prompts
    assert usage["completion_tokens"] == prompts * len(ANSWER)
    assert usage["prompt_tokens"] == sum(len(asked.prompt) for asked in engine.asked)
    if isinstance(prompt[0], int):
        assert engine.asked[0].prompt == prompt


@pytest.mark.parametrize(
    "prompt", ["", [], [[]], ["a", 5], [[5], "a"], [1 << 40], [-1], ["a"] * 129, None, 5, {"a": 1}]
)
async def test_prompts_that_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, prompt: Any
) -> None:
    answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": prompt})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"].startswith("prompt")
    assert not engine.running


async def test_one_refused_prompt_aborts_the_others(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await http.post("/v1/completions", json={"model": MODEL, "prompt": [[5], [9999]]})
    assert answer.status_code == 400
    assert engine.aborted == 1
    assert not engine.running


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
async def test_echo(
    client: openai.AsyncOpenAI, engine: FakeEngine, stream: bool, as_tokens: bool
) -> None:
    engine.answers = ["a0", "a1", "b0", "b1"]
    engine.warnings = ("careful",)
    texts = ["hello user", "Grüße 👋"]
    prompt: Any = texts
    if as_tokens:
        prompt = [[0, *engine.tokenizer.encode(text)] for text in texts]
    given: dict[str, Any] = {"model": MODEL, "prompt": prompt, "n": 2, "echo": True}
    whole = ["", "", "", ""]
    if stream:
        given["stream_options"] = {"include_usage": True}
        async for chunk in await client.completions.create(stream=True, **given):
            usage = chunk.usage
            for choice in chunk.choices:
                whole[choice.index] += choice.text
    else:
        answer = await client.completions.create(**given)
        usage = answer.usage
        whole = [choice.text for choice in answer.choices]
    assert whole == ["hello usera0", "hello usera1", "Grüße 👋b0", "Grüße 👋b1"]
    assert usage is not None
    assert usage.completion_tokens == 8
    prompts = [each.prompt for each in engine.asked]
    assert usage.prompt_tokens == len(prompts[0]) + len(prompts[2])


async def test_a_prompt_that_is_no_text_is_not_echoed(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for prompt in ([1 << 40], [-1]):
        given = {"model": MODEL, "prompt": prompt, "echo": True}
        answer = await http.post("/v1/completions", json=given)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == "prompt"
    assert not engine.running


async def test_options_that_do_not_go_with_an_echo_are_refused(http: httpx.AsyncClient) -> None:
    for fields, param in (
        ({"max_tokens": 0}, "max_tokens"),
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
    ):
        answer = await http.post("/v1/completions", json={"prompt": "hello", **fields})
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param
    answer = await http.post(
        "/v1/completions", json={"prompt": "hello", "max_tokens": 0, "echo": True}
    )
    assert answer.json()["choices"][0]["text"] == "hello"
    assert answer.json()["usage"]["completion_tokens"] == 0

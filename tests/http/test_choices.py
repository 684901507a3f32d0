"""Several answers to one prompt, and predictions of them."""

import json
from typing import Any

import httpx
import openai
import pytest

from pyengine.http.limits import Limits
from tests.http.fake_engine import FakeEngine

MODEL = "org/fake"
HELLO: list[Any] = [{"role": "user", "content": "hello"}]
ANSWERS = ["one", "second", "the third"]


@pytest.mark.parametrize("stream", [False, True])
async def test_chat(client: openai.AsyncOpenAI, engine: FakeEngine, stream: bool) -> None:
    engine.answers = list(ANSWERS)
    asked: dict[str, Any] = {"model": MODEL, "messages": HELLO, "n": 3, "seed": 7}
    texts = ["", "", ""]
    reasons = []
    order = []
    if stream:
        options: Any = {"include_usage": True}
        async for chunk in await client.chat.completions.create(
            **asked, stream=True, stream_options=options
        ):
            usage = chunk.usage
            for choice in chunk.choices:
                texts[choice.index] += choice.delta.content or ""
                if choice.delta.content:
                    order.append(choice.index)
                if choice.finish_reason:
                    reasons.append(choice.finish_reason)
        assert order[:3] == [0, 1, 2], "they come one beside the other"
    else:
        answer = await client.chat.completions.create(**asked)
        usage = answer.usage
        assert [choice.index for choice in answer.choices] == [0, 1, 2]
        texts = [choice.message.content or "" for choice in answer.choices]
        reasons = [choice.finish_reason for choice in answer.choices]
    assert texts == ANSWERS
    assert reasons == ["stop"] * 3
    assert [each.params.seed for each in engine.asked] == [7, 8, 9]
    prompt = len(engine.asked[0].prompt)
    assert usage is not None
    assert usage.prompt_tokens == prompt
    assert usage.completion_tokens == sum(map(len, ANSWERS))
    assert usage.total_tokens == prompt + sum(map(len, ANSWERS))
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == prompt // 2


@pytest.mark.parametrize("stream", [False, True])
async def test_completions_of_several_prompts(
    http: httpx.AsyncClient, engine: FakeEngine, stream: bool
) -> None:
    engine.answers = ["a0", "a1", "b0", "b1"]
    body = {"model": MODEL, "prompt": ["a", "bb"], "n": 2, "best_of": 2, "stream": stream}
    if stream:
        body["stream_options"] = {"include_usage": True}
    answer = await http.post("/v1/completions", json=body)
    if stream:
        chunks = [json.loads(event[6:]) for event in answer.text.split("\n\n")[:-2]]
        usage = chunks.pop()["usage"]
        texts = ["", "", "", ""]
        for chunk in chunks:
            texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    else:
        usage = answer.json()["usage"]
        texts = [choice["text"] for choice in answer.json()["choices"]]
    assert texts == ["a0", "a1", "b0", "b1"]
    assert [each.params.seed for each in engine.asked] == [None] * 4
    asked = [each.prompt for each in engine.asked]
    assert asked[0] == asked[1] != asked[2] == asked[3]
    assert usage["prompt_tokens"] == len(asked[0]) + len(asked[2])
    assert usage["completion_tokens"] == 8


async def test_seeds_stay_within_their_range(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    top = 2**63 - 1
    await client.chat.completions.create(model=MODEL, messages=HELLO, n=2, seed=top)
    assert [each.params.seed for each in engine.asked] == [top, -(2**63)]


@pytest.mark.parametrize("limits", [Limits(max_choices=4)])
@pytest.mark.parametrize("n", [0, -1, 5, 1 << 40])
async def test_limits(http: httpx.AsyncClient, engine: FakeEngine, n: int) -> None:
    for path, prompt in (("chat/completions", "messages"), ("completions", "prompt")):
        given = {"model": MODEL, prompt: HELLO if prompt == "messages" else "x", "n": n}
        error = (await http.post(f"/v1/{path}", json=given)).json()["error"]
        assert error["param"] == "n"
        assert "4" in error["message"]
    both = {"model": MODEL, "prompt": ["a", "b"], "n": 3}
    error = (await http.post("/v1/completions", json=both)).json()["error"]
    assert error["param"] == "n"
    assert not engine.asked


async def test_best_of_more_than_are_wanted(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "prompt": "a", "n": 2, "best_of": 3}
    error = (await http.post("/v1/completions", json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("best_of", "unsupported_parameter")


@pytest.mark.parametrize(
    "content", ["hello world", [{"type": "text", "text": "hello"}, {"type": "text", "text": "you"}]]
)
async def test_a_prediction(client: openai.AsyncOpenAI, engine: FakeEngine, content: Any) -> None:
    engine.drafts = (5, 2)
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, prediction={"type": "content", "content": content}
    )
    predicted = engine.asked[0].prediction
    assert predicted is not None
    expected = content if isinstance(content, str) else "hello\nyou"
    assert engine.tokenizer.decode(predicted) == expected
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    assert (details.accepted_prediction_tokens, details.rejected_prediction_tokens) == (5, 2)
    assert details.reasoning_tokens is None


@pytest.mark.parametrize(
    ("prediction", "param"),
    [
        ({"type": "content"}, "prediction.content"),
        ({"type": "diff", "content": "x"}, "prediction.type"),
        ({"type": "content", "content": [{"type": "image_url"}]}, "prediction.content[0].type"),
        ({"type": "content", "content": "x", "more": 1}, "prediction.more"),
    ],
)
async def test_predictions_that_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, prediction: Any, param: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, "prediction": prediction}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.asked

"""Log-probabilities in ``/v1/responses``: whole and in events, with the real engine."""

import json
from collections.abc import AsyncIterator
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from tests.http.test_logprob_fields import QUESTION, table

OF_TEXT: Any = "message.output_text.logprobs"
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


def _asked(engine: AsyncEngine) -> dict[str, Any]:
    return {
        "model": engine.model_name,
        "input": QUESTION[0]["content"],
        "temperature": 0,
        "max_output_tokens": 30,
        "top_logprobs": 4,
        "include": [OF_TEXT],
    }


async def test_whole_and_in_events(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    answer = await client.responses.create(**_asked(engine))
    assert answer.top_logprobs == 4
    item: Any = answer.output[0]
    part = item.content[0]
    entries = part.logprobs
    assert entries
    assert "".join(entry.token for entry in entries) == part.text == answer.output_text
    assert b"".join(bytes(entry.bytes) for entry in entries).decode() == part.text
    ids = [engine.tokenizer.encode(e.token, add_special_tokens=False) for e in entries]
    rows = table(engine.render(QUESTION), [i for each in ids for i in each])
    assert len(rows) == len(entries)
    for row, entry in zip(rows, entries, strict=True):
        assert [top.logprob for top in entry.top_logprobs] == pytest.approx(
            row.sort(descending=True).values[:4].tolist(), abs=2e-3
        )
        top = entry.top_logprobs[0]
        assert (entry.token, entry.logprob, entry.bytes) == (top.token, top.logprob, top.bytes)

    streamed: list[Any] = []
    text = ""
    done: Any = None
    final: Any = None
    async for event in await client.responses.create(stream=True, **_asked(engine)):
        if event.type == "response.output_text.delta":
            text += event.delta
            streamed += event.logprobs
            assert "".join(entry.token for entry in streamed) == text
        if event.type == "response.output_text.done":
            done = event
        if event.type in ("response.completed", "response.incomplete"):
            final = getattr(event, "response", None)
    without_bytes = [
        {
            "token": entry.token,
            "logprob": entry.logprob,
            "top_logprobs": [
                {"token": top.token, "logprob": top.logprob} for top in entry.top_logprobs
            ],
        }
        for entry in entries
    ]
    assert [entry.model_dump() for entry in streamed] == without_bytes
    assert [entry.model_dump() for entry in done.logprobs] == without_bytes
    assert final.output[0].content[0].logprobs == entries


async def test_the_clients_own_stream(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(**_asked(engine)) as stream:
        async for event in stream:
            if event.type == "response.output_text.delta":
                assert event.logprobs
        final: Any = await stream.get_final_response()
    assert final.output[0].content[0].logprobs


async def test_only_likely_tokens_that_are_wanted(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    asked = _asked(engine)
    del asked["top_logprobs"]
    item: Any = (await client.responses.create(**asked)).output[0]
    assert item.content[0].logprobs
    assert all(entry.top_logprobs == [] for entry in item.content[0].logprobs)
    del asked["include"]
    answer: Any = await client.responses.create(**asked)
    assert answer.output[0].content[0].logprobs == []
    assert answer.top_logprobs == 0


async def test_calls_have_none_and_an_answer_goes_back_as_it_came(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    asked = {**_asked(engine), "tools": [WEATHER], "max_output_tokens": 80}
    called = await client.responses.create(tool_choice="required", **asked)
    assert [item.type for item in called.output] == ["function_call"]
    kinds = set()
    async for event in await client.responses.create(tool_choice="required", stream=True, **asked):
        kinds.add(event.type)
    assert "response.function_call_arguments.delta" in kinds
    assert "response.output_text.delta" not in kinds
    asked = _asked(engine)
    answer = await client.responses.create(**asked)
    before: Any = [item.model_dump(exclude_unset=True) for item in answer.output]
    assert before[0]["content"][0]["logprobs"]
    asked["input"] = [*QUESTION, *before, {"role": "user", "content": "Thanks."}]
    assert (await client.responses.create(**asked)).output_text


async def test_whole_and_streamed(engine: AsyncEngine, http: httpx.AsyncClient) -> None:
    answer = await http.post("/v1/responses", json=_asked(engine))
    assert answer.json()["output"][0]["content"][0]["logprobs"]
    answer = await http.post("/v1/responses", json={**_asked(engine), "stream": True})
    told = 0
    for event in answer.text.split("\n\n")[:-1]:
        made = json.loads(event.split("\ndata: ")[1])
        told += bool(made.get("logprobs"))
    assert told > 1


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"top_logprobs": 21, "include": [OF_TEXT]}, "top_logprobs"),
        ({"top_logprobs": -1, "include": [OF_TEXT]}, "top_logprobs"),
        ({"top_logprobs": "2"}, "top_logprobs"),
        ({"include": [OF_TEXT, "reasoning.secrets"]}, "include[1]"),
        ({"include": OF_TEXT}, "include"),
    ],
)
async def test_options_that_do_not_go_together_are_named(
    engine: AsyncEngine, http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    asked = {"model": engine.model_name, "input": "hi", **fields}
    answer = await http.post("/v1/responses", json=asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param

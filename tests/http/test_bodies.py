"""Every body has the shape that OpenAI's specification and client give it.

What all other tests are sent is validated too, by the fixture ``bodies``; here is something of each
kind, so that none is left out.
"""

import json
from typing import Any

import httpx
import pytest
from openai.types import Completion, CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from pyengine.chat.template import ChatTemplate
from pyengine.errors import EngineDeadError
from tests.http.fake_engine import FakeEngine
from tests.http.specification import SCHEMAS, Bodies
from tests.http.test_tools import CALLS, TEMPLATE, THOUGHT

MODEL = "org/fake"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
FUNCTION: dict[str, Any] = {"name": "get_weather", "parameters": {"type": "object"}}
TOOL = {"type": "function", **FUNCTION}
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
ANSWER = THOUGHT + "I look.\n" + CALLS

CHATS: list[dict[str, Any]] = [
    {},
    {"n": 2, "metadata": {"a": "b"}},
    {"tools": [{"type": "function", "function": FUNCTION}], "store": True},
    {"response_format": {"type": "json_object"}, "max_tokens": 5},
    {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
]
TEXTS: list[dict[str, Any]] = [{}, {"n": 2, "echo": True}, {"prompt": ["a", "b"], "max_tokens": 2}]
RESPONSES: list[dict[str, Any]] = [
    {},
    {"tools": [TOOL], "instructions": "Be brief."},
    {"tools": [TOOL], "tool_choice": {"type": "function", "name": "get_weather"}},
    {"text": {"format": {"type": "json_schema", "name": "x", "schema": SCHEMA}}},
    {"text": {"format": {"type": "json_object"}}, "max_output_tokens": 5},
    {"include": ["reasoning.encrypted_content"], "reasoning": {"effort": "low"}, "store": False},
    {"metadata": {"a": "b"}, "user": "u", "truncation": "auto", "safety_identifier": "u"},
]
SENT = {
    "response.created", "response.queued", "response.in_progress", "response.output_item.added",
    "response.content_part.added", "response.reasoning_text.delta", "response.reasoning_text.done",
    "response.output_text.delta", "response.output_text.done", "response.content_part.done",
    "response.function_call_arguments.delta", "response.function_call_arguments.done",
    "response.output_item.done", "response.completed", "response.incomplete", "response.failed",
    "error",
}  # fmt: skip


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=ANSWER)


async def test_something_of_every_kind(
    http: httpx.AsyncClient, engine: FakeEngine, bodies: Bodies
) -> None:
    for path, body, others in (
        ("/v1/chat/completions", CHAT, CHATS),
        ("/v1/completions", TEXT, TEXTS),
    ):
        for fields in others:
            whole = {key: value for key, value in fields.items() if key != "stream_options"}
            assert (await http.post(path, json={**body, **whole})).status_code == 200
            assert (await http.post(path, json={**body, **STREAM, **fields})).status_code == 200
    for fields in RESPONSES:
        asked = {"input": "hi", **fields}
        answer = await http.post("/v1/responses", json=asked)
        assert answer.status_code == 200, answer.text
        assert (await http.post("/v1/responses", json={**asked, "stream": True})).status_code == 200
    await _stored(http)
    engine.fail_after = (4, EngineDeadError("it fell"))
    for path, body in (("chat/completions", CHAT), ("completions", TEXT), ("responses", {})):
        for stream in (False, True):
            await http.post(f"/v1/{path}", json={"input": "hi", **body, "stream": stream})
    await http.get("/nothing")
    bodies.check()
    expected = {name for pair in SCHEMAS.values() for name in pair if name is not None}
    expected -= {"ResponseStreamEvent", "CreateEmbeddingResponse"}  # those are in another file
    assert expected | {"ErrorResponse"} <= set(bodies.seen)
    assert bodies.events == SENT


async def _stored(http: httpx.AsyncClient) -> None:
    """What is stored, and all that can be asked of it."""
    made = (await http.post("/v1/chat/completions", json={**CHAT, "store": True})).json()
    at = f"/v1/chat/completions/{made['id']}"
    await http.post(at, json={"metadata": {"a": "b"}})
    for path in ("/v1/chat/completions", at, f"{at}/messages", "/v1/models", f"/v1/models/{MODEL}"):
        assert (await http.get(path)).status_code == 200, path
    assert (await http.delete(at)).status_code == 200
    items = [
        {"role": "user", "content": "hi"},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
    ]
    behind = {"input": items, "background": True, "stream": True}
    text = (await http.post("/v1/responses", json=behind)).text
    first = json.loads(text.split("data: ")[1].partition("\n")[0])
    at = f"/v1/responses/{first['response']['id']}"
    for path in (at, f"{at}?stream=true", f"{at}/input_items"):
        assert (await http.get(path)).status_code == 200, path
    assert (await http.post(f"{at}/cancel")).status_code in (200, 400)
    assert (await http.delete(at)).status_code == 200
    begun = (await http.post("/v1/responses", json={"input": "hi", "background": True})).json()
    assert (await http.post(f"/v1/responses/{begun['id']}/cancel")).status_code == 200
    count = await http.post("/v1/responses/input_tokens", json={"input": "hi"})
    assert count.json()["object"] == "response.input_tokens"


USAGE = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
CHUNK: dict[str, Any] = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "m"}
CHUNK |= {"choices": [], "more": 1}


@pytest.mark.parametrize(
    ("path", "media", "body"),
    [
        ("/v1/chat/completions", "text/event-stream", 'data: {"id":"c"}\n\n'),
        ("/v1/chat/completions", "text/event-stream", f"data: {json.dumps(CHUNK)}\n\n"),
        ("/v1/responses", "text/event-stream", 'data: {"type":"response.made_up"}\n\n'),
        ("/v1/responses", "text/event-stream", 'data: {"type":"response.created"}\n\n'),
        ("/v1/completions", "application/json", json.dumps({"id": "c", "usage": USAGE})),
        ("/v1/responses/input_tokens", "application/json", '{"object":"response.input_tokens"}'),
        ("/v1/batches", "application/json", '{"object":"list"}'),
    ],
)  # fmt: skip
def test_field_of_another_type_is_named(path: str, media: str, body: str) -> None:
    bodies = Bodies()
    request = httpx.Request("POST", f"http://x{path}")
    bodies.keep(request, httpx.Response(200, headers={"content-type": media}), body.encode())
    with pytest.raises(AssertionError):
        bodies.check()


async def test_answers_against_the_client(http: httpx.AsyncClient) -> None:
    """Strictly: the client itself takes anything."""
    whole = (await http.post("/v1/chat/completions", json=CHAT)).json()
    answer = ChatCompletion.model_validate(whole, strict=True)
    assert isinstance(answer.usage, CompletionUsage)
    events = (await http.post("/v1/chat/completions", json={**CHAT, **STREAM})).text
    chunks = [json.loads(each.removeprefix("data: ")) for each in events.split("\n\n")[:-2]]
    kinds = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert kinds[-1].usage is not None
    whole = (await http.post("/v1/completions", json=TEXT)).json()
    assert Completion.model_validate(whole, strict=True).choices[0].text
    Model.model_validate((await http.get(f"/v1/models/{MODEL}")).json(), strict=True)
    response = (await http.post("/v1/responses", json={"input": "hi"})).text
    assert Response.model_validate_json(response).usage is not None

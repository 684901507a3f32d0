"""Answers have the shape that OpenAI's specification and client give them."""

import json
from typing import Any

import httpx
from openai.types import Completion, CompletionUsage, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from tests.reference import openapi

MODEL = "org/fake"
CHAT: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "hi"}
STREAM: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def check(schemas: dict[str, Any], schema: dict[str, Any], value: Any, at: str = "$") -> None:
    """Required keys, known keys, enumerations and types, as far down as the answers go."""
    if value is None and schema.get("nullable"):
        return None
    if "$ref" in schema:
        return check(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]], value, at)
    for part in schema.get("allOf", []):
        check(schemas, part, value, at)
    options = schema.get("anyOf") or schema.get("oneOf")
    if value is None:
        nullable = {"type": "null"} in (options or [])
        assert nullable or schema.get("type") == "null", f"{at} is null"
        return None
    if options:
        for option in options:
            try:
                return check(schemas, option, value, at)
            except AssertionError:
                continue
        raise AssertionError(f"{at} fits nothing")
    if "enum" in schema:
        assert value in schema["enum"], f"{at}: {value!r}"
    kinds = {"object": dict, "array": list, "string": str, "integer": int, "null": type(None)}
    if schema.get("type") in kinds:
        assert isinstance(value, kinds[schema["type"]]), f"{at}: {value!r}"
    if isinstance(value, dict):
        missing = set(schema.get("required", ())) - set(value)
        assert not missing, f"{at} lacks {missing}"
        properties = schema.get("properties", {})
        unknown = set(value) - set(properties)
        assert not unknown or schema.get("additionalProperties", False) is not False, (
            f"{at} has unknown {unknown}"
        )
        for key in set(value) & set(properties):
            check(schemas, properties[key], value[key], f"{at}.{key}")
    if isinstance(value, list):
        for index, inner in enumerate(value):
            check(schemas, schema["items"], inner, f"{at}[{index}]")
    return None


def _chunks(answer: httpx.Response) -> list[dict[str, Any]]:
    events = answer.text.split("\n\n")[:-2]
    return [json.loads(event.removeprefix("data: ")) for event in events]


async def test_answers_against_the_specification(http: httpx.AsyncClient) -> None:
    schemas = openapi()["components"]["schemas"]
    whole = (await http.post("/v1/chat/completions", json=CHAT)).json()
    check(schemas, schemas["CreateChatCompletionResponse"], whole)
    for chunk in _chunks(await http.post("/v1/chat/completions", json={**CHAT, **STREAM})):
        check(schemas, schemas["CreateChatCompletionStreamResponse"], chunk)
    whole = (await http.post("/v1/completions", json=TEXT)).json()
    check(schemas, schemas["CreateCompletionResponse"], whole)
    listed = (await http.get("/v1/models")).json()
    model = (await http.get(f"/v1/models/{MODEL}")).json()
    for each in (*listed["data"], model):
        assert each.pop("max_model_len") > 0  # beyond OpenAI's
    check(schemas, schemas["ListModelsResponse"], listed)
    check(schemas, schemas["Model"], model)
    check(schemas, schemas["ErrorResponse"], (await http.get("/nothing")).json())


async def test_answers_against_the_client(http: httpx.AsyncClient) -> None:
    """Strictly: the client itself takes anything."""
    whole = (await http.post("/v1/chat/completions", json=CHAT)).json()
    answer = ChatCompletion.model_validate(whole, strict=True)
    assert isinstance(answer.usage, CompletionUsage)
    chunks = _chunks(await http.post("/v1/chat/completions", json={**CHAT, **STREAM}))
    kinds = [ChatCompletionChunk.model_validate(chunk, strict=True) for chunk in chunks]
    assert kinds[-1].usage is not None
    whole = (await http.post("/v1/completions", json=TEXT)).json()
    assert Completion.model_validate(whole, strict=True).choices[0].text
    Model.model_validate((await http.get(f"/v1/models/{MODEL}")).json(), strict=True)

"""Every field of OpenAI's requests is either implemented or refused by name."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from fake_engine import FakeEngine

MODEL = "org/fake"
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
}
WALKED = {**MINIMAL, "/v1/responses": {"model": MODEL, "input": "hi"}}
SCHEMAS = {
    "/v1/chat/completions": "CreateChatCompletionRequest",
    "/v1/completions": "CreateCompletionRequest",
    "/v1/responses": "CreateResponse",
}
# Implemented, with a value that works.
IMPLEMENTED: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        **dict.fromkeys(("max_tokens", "max_completion_tokens"), 3),
        "temperature": 0.3,
        "top_p": 0.5,
        "seed": 5,
        "stop": ["a"],
        "stream": True,
        "user": "u",
        # No action needed: the docstring of ChatRequest says why.
        "safety_identifier": "u",
        "prompt_cache_key": "k",
        "parallel_tool_calls": False,
        "n": 2,
        "tool_choice": "none",
        "response_format": {"type": "json_object"},
        "prediction": {"type": "content", "content": "x"},
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"5": 100},
        "logprobs": True,
        "top_logprobs": 0,
    },
    "/v1/completions": {
        "max_tokens": 3,
        "temperature": 0.3,
        "top_p": 0.5,
        "seed": 5,
        "stop": ["a"],
        "stream": True,
        "user": "u",
        "n": 2,
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"5": -2.5},
        "logprobs": 5,
        "echo": True,
    },
}
IMPLEMENTED["/v1/responses"] = {
    "instructions": "Be brief.",
    "text": {"format": {"type": "json_object"}},
    "tool_choice": "none",
    "parallel_tool_calls": False,
    "max_output_tokens": 20,
    "temperature": 0.3,
    "top_p": 0.5,
    "stream": True,
    "user": "u",
    "safety_identifier": "u",
    "prompt_cache_key": "k",
    "reasoning": {"effort": None, "summary": None},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 0,
}
# A value that asks for something, for fields that are refused.
ASKING: dict[str, Any] = {
    "best_of": 2,
    "suffix": "end",
    "store": True,
    "reasoning_effort": "low",
    "tools": [{"type": "function", "function": {"name": "f"}}],
    "service_tier": "flex",
    "prompt_cache_retention": "24h",
}
NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "suffix": "",
    "store": False,
    "metadata": {},
    "tools": [],
    "modalities": ["text"],
    "service_tier": "auto",
    "background": False,
    "truncation": "disabled",
}


def _properties(schemas: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _properties(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]])
    found = set(schema.get("properties", {}))
    for part in schema.get("allOf", []):
        found |= _properties(schemas, part)
    return found


@pytest.mark.parametrize("path", list(WALKED))
async def test_every_field_of_the_spec(
    http: httpx.AsyncClient, shared_data: Path, path: str
) -> None:
    spec = json.loads((shared_data / "openai" / "openapi-subset.json").read_text())
    schemas = spec["components"]["schemas"]
    names = _properties(schemas, schemas[SCHEMAS[path]]) - set(WALKED[path])
    assert len(names) >= 15
    for name in sorted(names - {"stream_options"}):
        answer = await http.post(path, json={**WALKED[path], name: None})
        assert answer.status_code == 200, f"{name}: null: {answer.text}"
        if name in IMPLEMENTED[path]:
            value = IMPLEMENTED[path][name]
            answer = await http.post(path, json={**WALKED[path], name: value})
            assert answer.status_code == 200, f"{name}: {answer.text}"
            continue
        asking = ASKING.get(name, ["x"])
        if path == "/v1/responses" and name == "tools":
            asking = [{"type": "function", "name": "f"}]
        answer = await http.post(path, json={**WALKED[path], name: asking})
        assert answer.status_code == 400, f"{name} was taken"
        error = answer.json()["error"]
        assert (error["param"], error["code"]) == (name, "unsupported_parameter")
        assert name in error["message"]
        if name in NEUTRAL:
            answer = await http.post(path, json={**WALKED[path], name: NEUTRAL[name]})
            assert answer.status_code == 200, f"{name}: {answer.text}"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        (
            {"stream": True, "stream_options": {"include_obfuscation": True}},
            "stream_options.include_obfuscation",
        ),
        ({"stream": True, "stream_options": {"more": 1}}, "stream_options.more"),
        ({"repetition_penalty": 0}, "repetition_penalty"),
        ({"presence_penalty": 2.01}, "presence_penalty"),
        ({"frequency_penalty": -2.01}, "frequency_penalty"),
        ({"frequency_penalty": "much"}, "frequency_penalty"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"-1": 1}}, "logit_bias"),
        ({"logit_bias": {"five": 1}}, "logit_bias"),
        ({"logit_bias": {"5": "much"}}, "logit_bias[...]"),
        ({"logit_bias": [5]}, "logit_bias"),
        ({"bad_words": "x"}, "bad_words"),
        ({"bad_words": [""]}, "bad_words"),
        ({"bad_words": [1]}, "bad_words[0]"),
        ({"priority": 1 << 31}, "priority"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1.5}, "min_p"),
        ({"seed": 1 << 63}, "seed"),
        ({"seed": 1.5}, "seed"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": True}, "max_tokens"),
        ({"min_tokens": -1}, "min_tokens"),
        ({"stop": [""]}, "stop"),
        ({"stop": ["a"] * 17}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop_token_ids": [-1]}, "stop_token_ids"),
        ({"cache_salt": 5}, "cache_salt"),
    ],
)
@pytest.mark.parametrize("path", list(MINIMAL))
async def test_values_that_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, path: str, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(path, json={**MINIMAL[path], **fields})
    assert answer.status_code == 400
    error = answer.json()["error"]
    assert error["param"] == param
    assert param in error["message"] or param.split(".")[-1] in error["message"]
    assert not engine.asked


async def test_both_names_of_the_token_limit(http: httpx.AsyncClient) -> None:
    body = MINIMAL["/v1/chat/completions"]
    same = {**body, "max_tokens": 3, "max_completion_tokens": 3}
    assert (await http.post("/v1/chat/completions", json=same)).status_code == 200
    for fields in ({"max_tokens": 2, "max_completion_tokens": 3}, {"max_completion_tokens": 0}):
        answer = await http.post("/v1/chat/completions", json={**body, **fields})
        assert answer.json()["error"]["param"] in fields
        assert answer.status_code == 400

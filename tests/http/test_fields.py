"""Every field of OpenAI's requests is honoured, told of in a warning, or refused by name."""

import copy
import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import TEMPLATE
from tests.reference import openapi

MODEL = "org/fake"
MINIMAL: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]},
    "/v1/completions": {"model": MODEL, "prompt": "hi"},
}
WALKED = {**MINIMAL, "/v1/responses": {"model": MODEL, "input": "hi"}}
# What a field needs beside it to have an effect.
TOOL = {"type": "function", "name": "f"}
CHAT_TOOL = {"type": "function", "function": {"name": "f"}}
WITH: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"tools": [CHAT_TOOL], "logprobs": True},
    "/v1/completions": {},
    "/v1/responses": {"tools": [TOOL], "include": ["message.output_text.logprobs"]},
}
# What the answer shows of fields that the engine does not hear of.
IN_THE_ANSWER: dict[str, Callable[[httpx.Response], object]] = {
    "stream": lambda answer: "event-stream" in answer.headers["content-type"],
    "echo": lambda answer: answer.json()["choices"][0]["text"].startswith("hi"),
    "background": lambda answer: answer.json()["status"] == "queued",
    "truncation": lambda answer: answer.json()["truncation"] == "auto",
    "max_tool_calls": lambda answer: answer.json()["max_tool_calls"] == 3,
    "metadata": lambda answer: answer.json()["metadata"] == {"a": "b"},
}
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
        "parallel_tool_calls": False,
        "n": 2,
        "tool_choice": "required",
        "response_format": {"type": "json_object"},
        "prediction": {"type": "content", "content": "x"},
        "frequency_penalty": 0.5,
        "presence_penalty": -0.5,
        "logit_bias": {"5": 100},
        "logprobs": True,
        "top_logprobs": 2,
        "store": True,
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
    "tool_choice": "required",
    "parallel_tool_calls": False,
    "max_output_tokens": 20,
    "temperature": 0.3,
    "top_p": 0.5,
    "stream": True,
    "user": "u",
    "reasoning": {"effort": "low"},
    "include": ["message.output_text.logprobs"],
    "top_logprobs": 2,
    "store": False,
    "background": True,
    "truncation": "auto",
    "metadata": {"a": "b"},
    "max_tool_calls": 3,
}
# A value that asks for something, for fields that are refused.
ASKING: dict[str, Any] = {
    "best_of": 2,
    "suffix": "end",
    "tools": [{"type": "function", "function": {"name": "f"}}],
}
NEUTRAL: dict[str, Any] = {
    "best_of": 1,
    "suffix": "",
    "tools": [],
    "modalities": ["text"],
}
HINTS: dict[str, Any] = {
    "metadata": {"a": "b"},
    "service_tier": "flex",
    "safety_identifier": "u",
    "prompt_cache_key": "k",
    "prompt_cache_options": {},
    "prompt_cache_retention": "24h",
    "reasoning_effort": "low",
    "verbosity": "low",
}


def _properties(schemas: dict[str, Any], schema: dict[str, Any]) -> set[str]:
    if "$ref" in schema:
        return _properties(schemas, schemas[schema["$ref"].rsplit("/", 1)[1]])
    found = set(schema.get("properties", {}))
    for part in (*schema.get("allOf", []), *schema.get("anyOf", [])):
        found |= _properties(schemas, part)
    return found


async def _asked(http: httpx.AsyncClient, engine: FakeEngine, path: str, body: Any) -> Any:
    """What the engine is asked by a request."""
    engine.asked.clear()
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return list(engine.asked), answer


@pytest.mark.parametrize("path", list(WALKED))
async def test_every_honoured_field_has_an_effect(
    http: httpx.AsyncClient, engine: FakeEngine, path: str
) -> None:
    """The engine is asked for something else with it than without, or the answer differs."""
    engine.template = ChatTemplate(TEMPLATE + "{{ reasoning_effort }}")
    for name, value in IMPLEMENTED[path].items():
        body = {**WALKED[path], **WITH[path]}
        body.pop(name, None)
        plain, without = await _asked(http, engine, path, body)
        asked, answer = await _asked(http, engine, path, {**body, name: value})
        if name == "store":
            found = [await http.get(f"{path}/{each.json()['id']}") for each in (without, answer)]
            assert {each.status_code for each in found} == {200, 404}
        elif name in IN_THE_ANSWER:
            assert IN_THE_ANSWER[name](answer)
            assert not IN_THE_ANSWER[name](without)
        else:
            assert asked != plain, f"{name} has no effect"
        if "json" in answer.headers["content-type"]:
            told = answer.json().get("warnings", ())
            assert not any(f"'{name}'" in each for each in told), f"{name}: {told}"


@pytest.mark.parametrize("path", list(WALKED))
async def test_every_field_of_the_spec(http: httpx.AsyncClient, path: str) -> None:
    schemas = openapi()["components"]["schemas"]
    names = _properties(schemas, schemas[SCHEMAS[path]]) - set(WALKED[path])
    assert len(names) >= 15
    # The older form of tools excludes the newer; tests/http/agents has it.
    for name in sorted(names - {"stream_options", "functions", "function_call"}):
        answer = await http.post(path, json={**WALKED[path], name: None})
        assert answer.status_code == 200, f"{name}: null: {answer.text}"
        if name in IMPLEMENTED[path]:
            continue  # see above
        if name in HINTS:
            answer = await http.post(path, json={**WALKED[path], name: HINTS[name]})
            assert answer.status_code == 200, f"{name}: {answer.text}"
            (warning,) = answer.json()["warnings"]
            assert warning.startswith(f"'{name}'")
            assert answer.headers["x-pyengine-warnings"] == warning
            continue
        if name in ("previous_response_id", "conversation"):
            answer = await http.post(path, json={**WALKED[path], name: "none"})
            assert "with the id 'none'" in answer.json()["error"]["message"]
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
        ({"top_p": -0.1}, "top_p"),
        ({"top_k": -2}, "top_k"),
        ({"truncate_prompt_tokens": 0}, "truncate_prompt_tokens"),
        ({"timeout": 0}, "timeout"),
        ({"min_p": 1.5}, "min_p"),
        ({"typical_p": 0.0}, "typical_p"),
        ({"top_n_sigma": -2}, "top_n_sigma"),
        ({"dynatemp_range": 3}, "dynatemp_range"),
        ({"dynatemp_exponent": 0}, "dynatemp_exponent"),
        ({"xtc_probability": 1.5}, "xtc_probability"),
        ({"xtc_threshold": -0.1}, "xtc_threshold"),
        ({"dry_base": 0.5}, "dry_base"),
        ({"dry_sequence_breakers": "x"}, "dry_sequence_breakers"),
        ({"allowed_token_ids": []}, "allowed_token_ids"),
        ({"mirostat": 2}, "mirostat"),
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


USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
FUNCTION = {"name": "f", "parameters": {"type": "object"}}
NAMED = {"type": "function", "name": "f"}
CHAT: dict[str, Any] = {
    "model": MODEL,
    "messages": [
        {"role": "system", "content": [{"type": "text", "text": "x"}]},
        {"role": "developer", "content": "x"},
        USER,
        {"role": "assistant", "content": "x", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c", "content": "x"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "response_format": {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": {"type": "object"}},
    },
    "prediction": {"type": "content", "content": "x"},
    "stream": True,
    "stream_options": {"include_usage": True},
}
RESPONSE: dict[str, Any] = {
    "model": MODEL,
    "input": [
        {"role": "user", "content": [{"type": "input_text", "text": "x"}]},
        {"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "x"}]},
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "x"},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "x"}]},
    ],
    "tools": [{**NAMED, "parameters": {"type": "object"}}],
    "tool_choice": NAMED,
    "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
    "reasoning": {"effort": None},
    "stream": True,
    "stream_options": {"include_obfuscation": False},
}
# Where in a request an object of the specification lies.
NESTED: list[tuple[str, dict[str, Any], str, str]] = [
    (path, body, at, schema)
    for path, body, places in (
        (
            "/v1/chat/completions",
            CHAT,
            {
                "messages[0]": "ChatCompletionRequestSystemMessage",
                "messages[0].content[0]": "ChatCompletionRequestMessageContentPartText",
                "messages[1]": "ChatCompletionRequestDeveloperMessage",
                "messages[2]": "ChatCompletionRequestUserMessage",
                "messages[3]": "ChatCompletionRequestAssistantMessage",
                "messages[3].tool_calls[0]": "ChatCompletionMessageToolCall",
                "messages[4]": "ChatCompletionRequestToolMessage",
                "tools[0]": "ChatCompletionTool",
                "tools[0].function": "FunctionObject",
                "tool_choice": "ChatCompletionNamedToolChoice",
                "response_format": "ResponseFormatJsonSchema",
                "prediction": "PredictionContent",
                "stream_options": "ChatCompletionStreamOptions",
            },
        ),
        (
            "/v1/responses",
            RESPONSE,
            {
                "input[0]": "EasyInputMessage",
                "input[0].content[0]": "InputTextContent",
                "input[1]": "ReasoningItem",
                "input[1].content[0]": "ReasoningTextContent",
                "input[2]": "FunctionToolCall",
                "input[3]": "FunctionCallOutputItemParam",
                "input[4]": "OutputMessage",
                "input[4].content[0]": "OutputTextContent",
                "tools[0]": "FunctionTool",
                "tool_choice": "ToolChoiceFunction",
                "text": "ResponseTextParam",
                "text.format": "TextResponseFormatJsonSchema",
                "reasoning": "Reasoning",
                "stream_options": "ResponseStreamOptions",
            },
        ),
    )
    for at, schema in places.items()
]


@pytest.mark.parametrize(
    ("path", "body", "at", "schema"), NESTED, ids=[f"{each[0]} {each[2]}" for each in NESTED]
)
async def test_every_field_of_nested_objects(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    path: str,
    body: dict[str, Any],
    at: str,
    schema: str,
) -> None:
    """What a field cannot be is refused by the field's name; of a hint there is a warning."""
    engine.template = ChatTemplate(TEMPLATE)
    assert (await http.post(path, json=body)).status_code == 200
    schemas = openapi()["components"]["schemas"]
    names = _properties(schemas, schemas[schema])
    assert names
    # What is any JSON Schema is the grammar's compiler to judge.
    for name in sorted(names - {"schema", "parameters", "output_schema"}):
        given = copy.deepcopy(body)
        place: Any = given
        for step in re.findall(r"\w+", at):
            place = place[int(step) if step.isdigit() else step]
        place[name] = {"odd": ["x"]}
        given["stream"] = False
        if at != "stream_options":
            given.pop("stream_options")
        else:
            given["stream"] = True
        answer = await http.post(path, json=given)
        if answer.status_code == 200:
            told = re.sub(r"\[\d+\]", "[]", f"'{at}.{name}'")
            assert told in answer.headers["x-pyengine-warnings"]
            continue
        assert answer.status_code == 400, f"{at}.{name} was taken"
        error = answer.json()["error"]
        assert error["param"].startswith(f"{at}.{name}"), error

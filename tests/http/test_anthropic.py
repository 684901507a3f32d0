"""Anthropic's Messages: blocks in, blocks out, and the events between."""

import json
from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.errors import EngineDeadError
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.http.test_tools import CALLS, TEMPLATE, THOUGHT

MESSAGES = "/v1/messages"
HELLO = [{"role": "user", "content": "hello"}]
WEATHER: dict[str, Any] = {
    "name": "get_weather",
    "description": "The weather",
    "input_schema": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
}
NOW = {"name": "now", "input_schema": {"type": "object", "properties": {}}}
BODY: dict[str, Any] = {"model": "org/fake", "max_tokens": 400, "messages": HELLO}


@pytest.fixture
def engine() -> FakeEngine:
    answer = THOUGHT + "I look.\n" + CALLS
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=answer, max_context=4096)


def events(answer: httpx.Response) -> list[dict[str, Any]]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = []
    for event in answer.text.split("\n\n")[:-1]:
        kind, _, data = event.partition("\ndata: ")
        made = json.loads(data)
        assert kind == f"event: {made['type']}"
        found.append(made)
    return found


async def test_text(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = ANSWER
    system = [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}]
    body = {
        **BODY, "system": system, "temperature": 0.5, "top_k": 3, "top_p": 0.9,
        "stop_sequences": ["\n"], "metadata": {"user_id": "ada"},
    }  # fmt: skip
    answer = (await http.post(MESSAGES, json=body)).json()
    assert answer["type"] == "message"
    assert answer["content"] == [{"type": "text", "text": ANSWER.partition("\n")[0]}]
    assert answer["stop_reason"] == "end_turn"  # the made-up engine names no stop string
    (warning,) = answer["warnings"]
    assert warning.startswith("'system[].cache_control'")
    asked = engine.asked[0]
    usage = answer["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == len(asked.prompt)
    assert engine.tokenizer.decode(asked.prompt) == "system:Be brief.;user:hello;"
    assert asked.tenant == "ada"
    params = asked.params
    assert (params.temperature, params.top_k, params.top_p) == (0.5, 3, 0.9)
    assert (params.max_tokens, params.stop) == (400, ("\n",))
    short = (await http.post(MESSAGES, json={**BODY, "max_tokens": 3})).json()
    assert short["stop_reason"] == "max_tokens"


async def test_blocks_there_and_back(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {**BODY, "tools": [WEATHER, NOW]}
    answer = (await http.post(MESSAGES, json=body)).json()
    kinds = [block["type"] for block in answer["content"]]
    assert kinds == ["thinking", "text", "tool_use", "tool_use"]
    assert answer["stop_reason"] == "tool_use"
    uses = answer["content"][2:]
    assert [(use["name"], use["input"]) for use in uses] == [
        ("get_weather", {"city": "Paris"}),
        ("now", {}),
    ]
    results = [
        {"type": "tool_result", "tool_use_id": use["id"], "content": "no rain"} for use in uses
    ]
    again = [
        *HELLO,
        {"role": "assistant", "content": answer["content"]},
        {"role": "user", "content": [*results, {"type": "text", "text": "So?"}]},
    ]
    engine.answer = "dry"
    final = await http.post(MESSAGES, json={**body, "messages": again})
    assert final.json()["content"] == [{"type": "text", "text": "dry"}]
    assert engine.tokenizer.decode(engine.asked[1].prompt).endswith(
        "user:hello;assistant:I look.Let me see.[get_weather Paris][now ];"
        "tool:no rain;tool:no rain;user:So?;"
    )
    counted = await http.post(f"{MESSAGES}/count_tokens", json={**body, "messages": again})
    assert counted.json() == {"input_tokens": len(engine.asked[1].prompt)}


async def test_events(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {**BODY, "tools": [WEATHER, NOW], "stream": True}
    found = events(await http.post(MESSAGES, json=body))
    kinds = [event["type"] for event in found]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    texts: dict[int, str] = {}
    blocks: list[str] = []
    for event in found:
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"]["type"])
        if event["type"] == "content_block_delta":
            value = {k: v for k, v in event["delta"].items() if k != "type"}
            texts[event["index"]] = texts.get(event["index"], "") + next(iter(value.values()))
    assert blocks == ["thinking", "text", "tool_use", "tool_use"]
    assert kinds.count("content_block_stop") == 4
    assert texts[0] == "Let me see."
    assert json.loads(texts[2]) == {"city": "Paris"}
    assert found[-2]["delta"]["stop_reason"] == "tool_use"
    assert found[-2]["usage"]["output_tokens"] > 0


async def test_choices_and_thinking(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "now"}):
        body = {**BODY, "tools": [WEATHER, NOW], "tool_choice": choice}
        assert (await http.post(MESSAGES, json=body)).status_code == 200
        grammar = json.dumps(engine.asked[-1].grammar)
        assert ("get_weather" in grammar) == (choice["type"] == "any")
    thinking = {"type": "enabled", "budget_tokens": 1024}
    answer = await http.post(MESSAGES, json={**BODY, "thinking": thinking})
    assert "'thinking.budget_tokens'" in answer.headers["x-pyengine-warnings"]
    prefilled = [*HELLO, {"role": "assistant", "content": "I thi"}]
    engine.answer = "nk"
    assert (await http.post(MESSAGES, json={**BODY, "messages": prefilled})).status_code == 200
    assert engine.tokenizer.decode(engine.asked[-1].prompt).endswith("assistant:I thi")


async def test_wrong_requests_are_refused(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    image = {"type": "image", "source": {"type": "url", "url": "x"}}
    for fields, param in (
        ({"messages": [{"role": "user", "content": [image]}]}, "messages[0].content[0].type"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "user", "content": [{"type": "thinking", "thinking": "x"}]}]},
         "messages[0].content[0]"),
        ({"tools": [WEATHER], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"stop_sequences": [""]}, "stop_sequences"),
        ({"mcp_servers": [{"url": "x"}]}, "mcp_servers"),
        ({"max_tokens": 5000}, "max_tokens"),
        ({"temprature": 1}, "temprature"),
    ):  # fmt: skip
        answer = await http.post(MESSAGES, json={**BODY, **fields})
        assert answer.status_code == 400, answer.text
        assert answer.json()["type"] == "error"
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error"
        if param != "max_tokens":
            assert error["param"] == param
    assert not engine.running


async def test_a_failure_within_the_stream(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_after = (3, EngineDeadError("the engine failed"))
    found = events(await http.post(MESSAGES, json={**BODY, "stream": True}))
    assert found[-1]["type"] == "error"
    assert found[-1]["error"]["type"] == "api_error"

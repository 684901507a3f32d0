"""Claude Code's requests, as its public sources and the issues about them show them."""

import json
from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from tests.http.fake_engine import FakeEngine
from tests.http.test_anthropic import events
from tests.http.test_tools import TEMPLATE, THOUGHT

PATH = "/v1/messages?beta=true"
HEADERS = {
    "anthropic-version": "2023-06-01",
    "anthropic-beta": "claude-code-20250219,interleaved-thinking-2025-05-14,"
    "context-management-2025-06-27,effort-2025-11-24",
    "user-agent": "claude-cli/2.1.0 (external, cli)",
    "x-app": "cli",
}
CACHED = {"cache_control": {"type": "ephemeral"}}
KEEP_ALL = {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]}


def tool(name: str, **properties: str) -> dict[str, Any]:
    return {
        "name": name,
        "description": f"{name} of the agent.",
        "input_schema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        },
    }


TOOLS: list[dict[str, Any]] = [
    tool("Bash", command="string"),
    tool("Read", file_path="string"),
    tool("Edit", file_path="string", old_string="string", new_string="string"),
    {**tool("mcp__" + "long_server_name_" * 5 + "__query", q="string"), "defer_loading": True},
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 8},
]
USER = [
    {"type": "text", "text": "<system-reminder>x</system-reminder>"},
    {"type": "text", "text": "ls?"},
]
BODY: dict[str, Any] = {
    "model": "org/fake",
    "max_tokens": 2000,
    "messages": [{"role": "user", "content": USER}],
    "system": [
        {"type": "text", "text": "You are Claude Code, Anthropic's official CLI.", **CACHED},
        {"type": "text", "text": "Work in /repo.", **CACHED},
    ],
    "tools": TOOLS,
    "metadata": {"user_id": "user_0_account__session_1"},
    "thinking": {"type": "adaptive", "display": "summarized"},
    "context_management": KEEP_ALL,
    "output_config": {"effort": "high"},
    "temperature": 1,
    "stream": True,
}


def call(name: str, **arguments: str) -> str:
    made = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{made}\n</tool_call>"


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), max_context=200_000)


async def turn(http: httpx.AsyncClient, body: dict[str, Any]) -> dict[str, Any]:
    """The message that the events of a turn put together, as the client does."""
    answer = await http.post(PATH, json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    made: dict[str, Any] = {}
    arguments: dict[int, str] = {}
    for event in events(answer):
        match event["type"]:
            case "message_start":
                made = event["message"]
            case "content_block_start":
                made["content"].append(event["content_block"])
            case "content_block_delta":
                block, delta = made["content"][event["index"]], event["delta"]
                kind = delta["type"].removesuffix("_delta")
                if kind == "input_json":
                    index = event["index"]
                    arguments[index] = arguments.get(index, "") + delta["partial_json"]
                elif kind == "signature":
                    block["signature"] = delta["signature"]
                else:
                    block[kind] += delta[kind]
            case "message_delta":
                made |= event["delta"] | {"usage": event["usage"]}
                made["context_management"] = event.get("context_management")
    for index, text in arguments.items():
        made["content"][index]["input"] = json.loads(text)
    return made


def results(message: dict[str, Any], text: str) -> dict[str, Any]:
    """The user's turn with a result for each call of the assistant's."""
    return {
        "role": "user",
        "content": [
            {
                "type": "tool_result",
                "tool_use_id": block["id"],
                "content": [{"type": "text", "text": text}],
                "is_error": False,
                **CACHED,
            }
            for block in message["content"]
            if block["type"] == "tool_use"
        ],
    }


async def test_first_turn(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await http.head("/")).status_code == 200
    engine.answer = THOUGHT + call("Bash", command="ls")
    message = await turn(http, BODY)
    assert message["stop_reason"] == "tool_use"
    thought, used = message["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "Let me see.")
    assert (used["name"], used["input"]) == ("Bash", {"command": "ls"})
    assert message["context_management"] == {"applied_edits": []}
    told = "\n".join(message["warnings"])
    assert "'web_search_20250305' is left out" in told
    assert "'reasoning_effort' is left out" in told  # the template reads none
    prompt = engine.tokenizer.decode(engine.asked[0].prompt)
    assert "web_search" not in prompt
    assert TOOLS[3]["name"] in prompt
    assert engine.asked[0].tenant == "user_0_account__session_1"


async def test_tool_turn(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answers = [THOUGHT + call("Read", file_path="/a"), "Done."]
    first = await turn(http, BODY)
    said = [{**block, "caller": {"type": "direct"}} if block["type"] == "tool_use" else block
            for block in first["content"]]  # fmt: skip
    messages = [*BODY["messages"], {"role": "assistant", "content": said}, results(first, "hello")]
    last = await turn(http, {**BODY, "messages": messages})
    assert last["stop_reason"] == "end_turn"
    assert last["content"] == [{"type": "text", "text": "Done."}]
    prompt = engine.tokenizer.decode(engine.asked[1].prompt)
    assert "assistant:Let me see.[Read ];tool:hello;" in prompt


async def test_ten_turns_with_results(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answers = [THOUGHT + f"Step {i}.\n" + call("Bash", command=f"c{i}") for i in range(9)]
    engine.answers.append("All done.")
    messages = list(BODY["messages"])
    for _ in range(9):
        message = await turn(http, {**BODY, "messages": messages})
        messages += [
            {"role": "assistant", "content": message["content"]},
            results(message, "ok"),
            {"role": "system", "content": "The user has opened a file."},
        ]
    assert (await turn(http, {**BODY, "messages": messages}))["content"][0]["text"] == "All done."
    prompt = engine.tokenizer.decode(engine.asked[9].prompt)
    assert prompt.count("tool:ok;") == 9
    assert prompt.count("Let me see.") == 9


async def test_counting_before_a_turn(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    kept = {key: BODY[key] for key in ("model", "messages", "system", "tools", "thinking")}
    body = {**kept, "context_management": KEEP_ALL, "output_config": {"effort": "high"}}
    counted = await http.post("/v1/messages/count_tokens?beta=true", json=body, headers=HEADERS)
    assert counted.status_code == 200, counted.text
    engine.answer = "ok"
    usage = (await turn(http, BODY))["usage"]
    given = usage["input_tokens"] + usage["cache_read_input_tokens"]
    assert counted.json() == {
        "input_tokens": given, "context_management": {"original_input_tokens": given},
    }  # fmt: skip


async def test_side_requests(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    """The title of a conversation by structured output, and the quota's one token."""
    engine.answer = '{"title": "Files"}'
    schema = {
        "type": "object", "properties": {"title": {"type": "string"}}, "required": ["title"],
        "additionalProperties": False,
    }  # fmt: skip
    title = {
        **{key: BODY[key] for key in ("model", "messages", "system", "metadata")},
        "max_tokens": 500, "tools": [],
        "output_config": {"format": {"type": "json_schema", "schema": schema}},
    }  # fmt: skip
    answer = await http.post(PATH, json=title, headers=HEADERS)
    assert answer.json()["content"] == [{"type": "text", "text": '{"title": "Files"}'}]
    assert json.dumps(schema) in json.dumps(engine.asked[0].grammar)
    quota = {
        "model": "org/fake",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "quota"}],
    }
    assert (await http.post(PATH, json=quota, headers=HEADERS)).status_code == 200

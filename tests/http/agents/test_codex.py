"""Codex's requests, as its public sources and the issues about them show them."""

import json
from typing import Any

import httpx
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.http.openai.custom_tools import arguments_of
from tests.http.agents.patches import PATCH, TEXT
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import TEMPLATE, THOUGHT

HEADERS = {"originator": "codex_cli_rs", "session_id": "4f1c", "accept": "text/event-stream"}


def function(name: str, **properties: str) -> dict[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": f"{name} of the agent.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {key: {"type": kind} for key, kind in properties.items()},
            "required": list(properties),
            "additionalProperties": False,
        },
    }


LONG = "search_" + "n" * 90
TOOLS: list[dict[str, Any]] = [
    {**function("exec_command", cmd="string"), "output_schema": {"type": "object"}},
    function("update_plan", plan="string"),
    {"type": "custom", "name": "apply_patch", "description": "Edits files.",
     "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}},
    {"type": "web_search", "external_web_access": False},
    {"type": "image_generation", "output_format": "png"},
    {"type": "namespace", "name": "mcp__github__", "description": "GitHub.",
     "tools": [function("issue", number="string"), {**function(LONG, q="string"),
                                                    "defer_loading": True}]},
    {"type": "tool_search", "execution": "client", "description": "Finds tools.",
     "parameters": {"type": "object", "properties": {"query": {"type": "string"}}}},
]  # fmt: skip
USER = {
    "type": "message", "role": "user", "content": [{"type": "input_text", "text": "Fix it."}],
}  # fmt: skip
ENVIRONMENT = {
    "type": "message", "role": "developer", "content": [{"type": "input_text", "text": "cwd: /r"}],
}  # fmt: skip
BODY: dict[str, Any] = {
    "model": "org/fake",
    "instructions": "You are Codex.",
    "input": [ENVIRONMENT, USER],
    "tools": TOOLS,
    "tool_choice": "auto",
    "parallel_tool_calls": True,
    "reasoning": {"effort": "medium", "summary": "auto", "context": "auto"},
    "store": False,
    "stream": True,
    "include": ["reasoning.encrypted_content"],
    "prompt_cache_key": "4f1c",
    "text": {"verbosity": "low"},
    "client_metadata": {"x-codex-installation-id": "i"},
}


def call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), max_context=200_000)


async def turn(http: httpx.AsyncClient, body: dict[str, Any]) -> list[dict[str, Any]]:
    """The items of a turn, as the client takes them from the events."""
    answer = await http.post("/v1/responses", json=body, headers=HEADERS)
    assert answer.status_code == 200, answer.text
    events = [json.loads(each.partition("data: ")[2]) for each in answer.text.split("\n\n")[:-1]]
    assert events[-1]["type"] == "response.completed", answer.text
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    items = [each["item"] for each in events if each["type"] == "response.output_item.done"]
    assert items == events[-1]["response"]["output"]
    for item in items:
        if item["type"] == "custom_tool_call":
            told = [e for e in events if e.get("item_id") == item["id"]]
            deltas = [e["delta"] for e in told[:-1]]
            assert {e["type"] for e in told[:-1]} == {"response.custom_tool_call_input.delta"}
            assert told[-1]["type"] == "response.custom_tool_call_input.done"
            assert "".join(deltas) == told[-1]["input"] == item["input"]
        item.pop("content", None) if item["type"] == "reasoning" else None
    return items


async def test_first_turn(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = THOUGHT + call("exec_command", '{"cmd": "ls"}')
    thought, called = await turn(http, BODY)
    assert thought["encrypted_content"]
    assert (called["type"], called["name"]) == ("function_call", "exec_command")
    answer = await http.post("/v1/responses", json={**BODY, "stream": False})
    told = "\n".join(answer.json()["warnings"])
    assert "'web_search' is left out" in told
    assert "'image_generation' is left out" in told
    assert "'verbosity' is left out" in told
    prompt = engine.tokenizer.decode(engine.asked[0].prompt)
    assert "web_search" not in prompt
    assert "mcp__github__issue" in prompt
    assert f"mcp__github__{LONG}" in prompt
    echoed = [tool["type"] for tool in answer.json()["tools"]]
    assert echoed == ["function", "function", "custom", "namespace", "tool_search"]


TURNS: list[tuple[str, dict[str, Any], dict[str, Any], str]] = [
    (call("exec_command", '{"cmd": "ls"}'),
     {"type": "function_call", "name": "exec_command", "arguments": '{"cmd": "ls"}'},
     {"type": "function_call_output", "output": "a.py"},
     "[exec_command ];tool:a.py;"),
    (call("apply_patch", arguments_of(TEXT)),
     {"type": "custom_tool_call", "name": "apply_patch", "input": TEXT},
     {"type": "custom_tool_call_output", "output": [{"type": "input_text", "text": "Done!"}]},
     "[apply_patch ];tool:Done!;"),
    (call("mcp__github__issue", '{"number": "7"}'),
     {"type": "function_call", "name": "issue", "namespace": "mcp__github__",
      "arguments": '{"number": "7"}'},
     {"type": "function_call_output", "output": "open"},
     "[mcp__github__issue ];tool:open;"),
    (call("tool_search", '{"query": "mail"}'),
     {"type": "tool_search_call", "execution": "client", "arguments": {"query": "mail"}},
     {"type": "tool_search_output", "execution": "client", "status": "completed",
      "tools": [function("send_mail", to="string")]},
     "[tool_search ];tool:Found: send_mail.;"),
]  # fmt: skip


@pytest.mark.parametrize(("answer", "expected", "output", "prompt"), TURNS)
async def test_tool_turn(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    answer: str,
    expected: dict[str, Any],
    output: dict[str, Any],
    prompt: str,
) -> None:
    engine.answers = [THOUGHT + answer, "Done."]
    thought, called = await turn(http, BODY)
    assert called.items() >= expected.items()
    result = {**output, "call_id": called["call_id"]}
    (said,) = await turn(http, {**BODY, "input": [ENVIRONMENT, USER, thought, called, result]})
    assert said["content"][0]["text"] == "Done."
    shown = engine.tokenizer.decode(engine.asked[1].prompt)
    assert f"user:Fix it.;assistant:Let me see.{prompt}" in shown
    assert ("send_mail of the agent" in shown) == (output["type"] == "tool_search_output")


async def test_ten_turns_with_results(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    made = [
        call("exec_command", json.dumps({"cmd": f"c{i}"}))
        if i % 2
        else call("apply_patch", arguments_of(TEXT))
        for i in range(9)
    ]
    engine.answers = [*(THOUGHT + each for each in made), "All done."]
    items: list[Any] = [ENVIRONMENT, USER]
    for _ in range(9):
        thought, called = await turn(http, {**BODY, "input": items})
        kind = called["type"] + "_output"
        items += [thought, called, {"type": kind, "call_id": called["call_id"], "output": "ok"}]
    (said,) = await turn(http, {**BODY, "input": items})
    assert said["content"][0]["text"] == "All done."
    prompt = engine.tokenizer.decode(engine.asked[9].prompt)
    assert prompt.count("tool:ok;") == prompt.count("Let me see.") == 9


async def test_compaction_by_the_client(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    """Without the server's own compaction, Codex asks for a summary and goes on with it."""
    engine.answers = ["Summary: a.py is fixed.", "Go on."]
    ask = {**USER, "content": [{"type": "input_text", "text": "Sum up."}]}
    (said,) = await turn(http, {**BODY, "input": [ENVIRONMENT, USER, ask], "tools": []})
    summary = {**USER, "content": [{"type": "input_text", "text": said["content"][0]["text"]}]}
    (last,) = await turn(http, {**BODY, "input": [ENVIRONMENT, summary, USER]})
    assert last["content"][0]["text"] == "Go on."

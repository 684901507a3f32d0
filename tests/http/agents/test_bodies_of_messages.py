"""Fields and blocks that clients of Anthropic's API send: each is done, told of, or refused."""

import json
from typing import Any

import httpx
import pydantic
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.http.anthropic.context_edits import CLEARED
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.http.test_anthropic import BODY, HELLO, MESSAGES, WEATHER, events
from tests.http.test_tools import TEMPLATE, THOUGHT

NAME_OF_128 = "mcp__" + "n" * 123


@pytest.fixture
def engine() -> FakeEngine:
    template = TEMPLATE + "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    return FakeEngine(template=ChatTemplate(template), answer="ok", max_context=8000)


async def asked(http: httpx.AsyncClient, engine: FakeEngine, **fields: Any) -> tuple[str, Any]:
    """The prompt that a request makes, and its answer."""
    answer = await http.post(MESSAGES, json={**BODY, **fields})
    assert answer.status_code == 200, answer.text
    return engine.tokenizer.decode(engine.asked[-1].prompt), answer.json()


HINTS: list[tuple[dict[str, Any], str]] = [
    ({"thread": {"type": "create"}}, "'thread'"),
    ({"workspace_id": "w"}, "'workspace_id'"),
    ({"diagnostics": {"previous_message_id": None}}, "'diagnostics'"),
    ({"fallbacks": ["x"]}, "'fallbacks'"),
    ({"tools": [{**WEATHER, "defer_loading": True}]}, "'tools[].defer_loading'"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "'web_search_20250305'"),
    ({"tools": [{"type": "computer_20250124", "name": "computer", "display_width_px": 10}]},
     "'computer_20250124'"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "'thinking.budget_tokens'"),
    ({"messages": [*HELLO, {"role": "assistant", "content": [
        {"type": "redacted_thinking", "data": "x"}, {"type": "text", "text": "Hi."}]}, *HELLO]},
     "'redacted_thinking'"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "told"), HINTS)
async def test_hints_are_told(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], told: str
) -> None:
    _, answer = await asked(http, engine, **fields)
    assert told in "\n".join(answer["warnings"])


HISTORY = [
    {"role": "user", "content": "a"},
    {"role": "assistant", "content": [
        {"type": "thinking", "thinking": "hm", "signature": "x"},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Oslo"},
         "caller": {"type": "direct"}, "toolset_name": "s"}]},
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [
        {"type": "text", "text": "rain"},
        {"type": "tool_reference", "tool_name": "get_weather"}]}]},
]  # fmt: skip
PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"messages": HISTORY, "tools": [WEATHER]}, "user:a;assistant:hm[get_weather Oslo];tool:rain;"),
    ({"output_config": {"effort": "low"}}, "[low]"),
    ({"messages": [{"role": "user", "content": [
        {"type": "document", "title": "T", "context": "C",
         "source": {"type": "text", "media_type": "text/plain", "data": "Plain."}},
        {"type": "text", "text": "Sum up."}]}]}, "user:T\nC\nPlain.\nSum up.;"),
    ({"messages": [{"role": "user", "content": [
        {"type": "document", "source": {"type": "content", "content": [
            {"type": "text", "text": "Part."}]}}]}]}, "user:Part.;"),
    ({"chat_template_kwargs": {"reasoning_effort": "mid"}}, "[mid]"),
    ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, '"restart"'),
    ({"tools": [{"type": "text_editor_20250728", "name": "str_replace_based_edit_tool",
                 "max_characters": 99}]}, '"str_replace"'),
    ({"tools": [{"type": "memory_20250818", "name": "memory"}]}, '"old_path"'),
    ({"tools": [{**WEATHER, "name": NAME_OF_128}]}, NAME_OF_128),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "prompt"), PROMPTS)
async def test_what_the_model_reads(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], prompt: str
) -> None:
    assert prompt in (await asked(http, engine, **fields))[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"output_config": {"format": {"type": "xml"}}}, "output_config.format.type"),
    ({"output_config": {"effort": "low"}, "chat_template_kwargs": {"reasoning_effort": "x"}},
     "output_config.effort"),
    ({"context_management": {"edits": [{"type": "compact_20260112"}]}},
     "context_management.edits[0].type"),
    ({"tools": [{"type": "web_search_20250305", "name": "web_search"}],
      "tool_choice": {"type": "tool", "name": "web_search"}}, "tool_choice"),
    ({"tools": [{"type": "teleport_20250101", "name": "t"}]}, "tools[0].type"),
    ({"tools": [{**WEATHER, "name": "n" * 129}]}, "tools[0].name"),
    ({"messages": [{"role": "user", "content": [{"type": "document", "source": {
        "type": "base64", "media_type": "application/pdf", "data": ""}}]}]},
     "messages[0].content[0].source.type"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_cannot_be_done_is_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(MESSAGES, json={**BODY, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert not engine.asked


async def test_tenants_are_kept_apart(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    await asked(http, engine, cache_salt="s", priority=3, seed=7, timeout=9.0)
    made = engine.asked[0]
    assert (made.cache_salt, made.priority, made.params.seed) == ("s", 3, 7)


class Title(pydantic.BaseModel):
    title: str


@pytest.mark.slow  # `make test-all` installs the client
async def test_the_clients_parse(server: HttpServer, engine: FakeEngine) -> None:
    import anthropic

    engine.answer = '{"title": "Rain"}'
    async with anthropic.AsyncAnthropic(base_url=server.url, api_key="none") as client:
        message = await client.messages.parse(
            model="org/fake", max_tokens=400, output_format=Title,
            messages=[{"role": "user", "content": "hello"}],
        )  # fmt: skip
    assert message.parsed_output == Title(title="Rain")
    assert engine.asked[0].grammar is not None


@pytest.mark.parametrize("stream", [False, True])
async def test_thinking_that_is_omitted_comes_back_in_its_signature(
    http: httpx.AsyncClient, engine: FakeEngine, stream: bool
) -> None:
    engine.answer = THOUGHT + "Yes."
    body = {**BODY, "thinking": {"type": "enabled", "display": "omitted"}, "stream": stream}
    answer = await http.post(MESSAGES, json=body)
    assert "Let me see." not in answer.text
    if stream:
        deltas = [e["delta"] for e in events(answer) if e["type"] == "content_block_delta"]
        (signature,) = (d["signature"] for d in deltas if d["type"] == "signature_delta")
        block = {"type": "thinking", "thinking": "", "signature": signature}
    else:
        block = answer.json()["content"][0]
    said = {"role": "assistant", "content": [block, {"type": "text", "text": "Yes."}]}
    prompt, _ = await asked(http, engine, messages=[*HELLO, said, *HELLO])
    assert "assistant:Yes.Let me see.;" in prompt


async def test_an_answer_that_ends_in_its_thinking(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.answer = "<think>\nLet me see"
    _, answer = await asked(http, engine)
    streamed = events(await http.post(MESSAGES, json={**BODY, "stream": True}))
    begun = [e["content_block"]["type"] for e in streamed if e["type"] == "content_block_start"]
    assert [block["type"] for block in answer["content"]] == begun == ["thinking"]
    said = {"role": "assistant", "content": answer["content"]}
    await asked(http, engine, messages=[*HELLO, said, *HELLO])


def turns(count: int) -> list[dict[str, Any]]:
    """A conversation with so many calls and their results, each after a thought."""
    made: list[dict[str, Any]] = [{"role": "user", "content": "go"}]
    for i in range(count):
        use = {"type": "tool_use", "id": f"t{i}", "name": "get_weather", "input": {"city": f"C{i}"}}
        thought = {"type": "thinking", "thinking": f"T{i}", "signature": ""}
        result = {"type": "tool_result", "tool_use_id": f"t{i}", "content": f"R{i}" * 50}
        made += [{"role": "assistant", "content": [thought, use]},
                 {"role": "user", "content": [result]}]  # fmt: skip
    return made


async def test_old_results_are_cleared(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    edit: dict[str, Any] = {
        "type": "clear_tool_uses_20250919",
        "trigger": {"type": "input_tokens", "value": 100},
        "keep": {"type": "tool_uses", "value": 2},
        "clear_tool_inputs": True,
    }
    fields = {"messages": turns(5), "tools": [WEATHER]}
    whole, _ = await asked(http, engine, **fields)
    prompt, answer = await asked(http, engine, **fields, context_management={"edits": [edit]})
    assert prompt.count(CLEARED) == 3
    assert "C2" not in prompt
    assert "C3" in prompt
    assert "R3" in prompt
    (told,) = answer["context_management"]["applied_edits"]
    fewer = len(engine.tokenizer.encode(whole)) - len(engine.tokenizer.encode(prompt))
    assert told == {
        "type": "clear_tool_uses_20250919", "cleared_tool_uses": 3, "cleared_input_tokens": fewer,
    }  # fmt: skip
    for change in (
        {"trigger": {"type": "input_tokens", "value": 5000}},
        {"trigger": {"type": "tool_uses", "value": 5}},
        {"clear_at_least": {"type": "input_tokens", "value": 5000}},
        {"exclude_tools": ["get_weather"]},
    ):
        management = {"edits": [{**edit, **change}]}
        prompt, answer = await asked(http, engine, **fields, context_management=management)
        assert answer["context_management"] == {"applied_edits": []}, change
        assert prompt == whole


async def test_old_thinking_is_cleared(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    edit = {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 2}}
    fields = {"messages": turns(4), "tools": [WEATHER], "context_management": {"edits": [edit]}}
    prompt, answer = await asked(http, engine, **fields)
    assert [f"T{i}[" in prompt for i in range(4)] == [False, False, True, True]
    (told,) = answer["context_management"]["applied_edits"]
    assert told["cleared_thinking_turns"] == 2
    assert json.dumps(told)

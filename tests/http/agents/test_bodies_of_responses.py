"""Fields, tools and items that clients of Responses send: each is done, told of, or refused."""

import json
from typing import Any

import httpx
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import CALLS, TEMPLATE, THOUGHT

PATH = "/v1/responses"
F = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}}
CUSTOM = {"type": "custom", "name": "c"}
USER = {"role": "user", "content": "hi"}
VARIABLES = (
    "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    "{% if verbosity %}[{{ verbosity }}]{% endif %}"
)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE + VARIABLES), answer="ok", max_context=4096)


async def asked(http: httpx.AsyncClient, engine: FakeEngine, **fields: Any) -> tuple[str, Any]:
    """The prompt that a request makes, and its answer."""
    answer = await http.post(PATH, json={"input": "hi", **fields})
    assert answer.status_code == 200, answer.text
    return engine.tokenizer.decode(engine.asked[-1].prompt), answer.json()


HOSTED = [
    "web_search", "web_search_2025_08_26", "web_search_preview", "web_search_preview_2025_03_11",
    "image_generation", "code_interpreter", "file_search", "computer", "computer_use_preview",
    "mcp", "local_shell", "shell", "apply_patch",
]  # fmt: skip


@pytest.mark.parametrize("kind", HOSTED)
async def test_hosted_tools_are_left_out(
    http: httpx.AsyncClient, engine: FakeEngine, kind: str
) -> None:
    for choice in ("auto", "none", "required"):
        tools = [F, {"type": kind, "whatever": {"a": 1}}]
        prompt, answer = await asked(http, engine, tools=tools, tool_choice=choice)
        assert f"'{kind}' is left out" in "\n".join(answer["warnings"])
        assert kind not in prompt
    for tool_choice in ("required", {"type": kind}):
        body = {"input": "hi", "tools": [{"type": kind}], "tool_choice": tool_choice}
        answer = await http.post(PATH, json=body)
        assert answer.status_code == 400, answer.text
        assert answer.json()["error"]["param"].startswith("tool_choice")


WARNED: list[tuple[dict[str, Any], str]] = [
    ({"client_metadata": {"a": "b"}}, "'client_metadata'"),
    ({"tools": [{**F, "defer_loading": True}]}, "'tools[].defer_loading'"),
    ({"reasoning": {"effort": "low", "summary": "auto"}}, "'reasoning.summary'"),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "lark", "definition":
        'start: "(" start? ")"'}}]}, "'tools[0].format' is told to the model and not enforced"),
    ({"input": [USER, {"type": "web_search_call", "id": "ws_1", "status": "completed",
                       "action": {"type": "search", "query": "x"}}]}, "'web_search_call'"),
    ({"input": [USER, {"type": "reasoning", "summary": [], "encrypted_content": "gAAA"}]},
     "encrypted_content"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "told"), WARNED)
async def test_what_is_left_out_is_told(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], told: str
) -> None:
    assert told in "\n".join((await asked(http, engine, **fields))[1]["warnings"])


def called(item: dict[str, Any], output: dict[str, Any]) -> list[dict[str, Any]]:
    return [USER, {"call_id": "x", **item}, {"call_id": "x", **output}]


PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"text": {"verbosity": "high"}}, "[high]"),
    ({"reasoning": {"effort": "xhigh"}}, "[xhigh]"),
    ({"tools": [{**F, "output_schema": {"title": "Temperature"}}]}, "It returns"),
    ({"tools": [{"type": "namespace", "name": "crm", "tools": [F, CUSTOM]}]}, "crm__f"),
    ({"tools": [{"type": "tool_search"}, {**F, "defer_loading": True}]}, '"f"'),
    ({"input": [{"type": "additional_tools", "role": "developer", "tools": [F]}, USER]}, '"f"'),
    ({"input": called({"type": "function_call", "name": "f", "arguments": '{"a": 1', "id": "fc_1",
                       "caller": {"type": "direct"}},
                      {"type": "function_call_output", "output": "o"}), "tools": [F]},
     "user:hi;assistant:[f ];tool:o;"),
    ({"input": called({"type": "custom_tool_call", "name": "c", "input": "a", "id": "ctc_1"},
                      {"type": "custom_tool_call_output", "output": "o"}), "tools": [CUSTOM]},
     "user:hi;assistant:[c ];tool:o;"),
    ({"input": [USER, {"type": "local_shell_call", "id": "l", "call_id": "x", "status": "completed",
                       "action": {"type": "exec", "command": ["ls"], "env": {}}},
                {"type": "local_shell_call_output", "id": "x", "output": "o"}]},
     "user:hi;assistant:[local_shell ];tool:o;"),
    ({"input": [USER, {"type": "tool_search_call", "arguments": {"paths": ["crm"]}},
                {"type": "tool_search_output", "tools": [F]}]},
     "user:hi;assistant:[tool_search ];tool:Found: f.;"),
    ({"input": [USER, {"type": "reasoning", "summary": [],
                       "content": [{"type": "reasoning_text", "text": "hm"}]},
                {"role": "user", "content": "and?"}]}, "user:hi;assistant:hm;user:and?;"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "prompt"), PROMPTS)
async def test_what_the_model_reads(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], prompt: str
) -> None:
    assert prompt in (await asked(http, engine, **fields))[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"prompt": {"id": "pmpt_1"}}, "prompt"),
    ({"tools": [{"name": "f"}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0].name"),
    ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
    ({"tools": [{"type": "namespace", "name": "n", "tools": [{"type": "x"}]}]},
     "tools[0].tools[0].type"),
    ({"tools": [{**CUSTOM, "format": {"type": "grammar", "syntax": "ebnf", "definition": ""}}]},
     "tools[0].format.syntax"),
    ({"tools": [CUSTOM], "tool_choice": {"type": "custom", "name": "d"}}, "tool_choice"),
    ({"input": [{"type": "item_reference", "id": "msg_none_0"}]}, "input[0].id"),
    ({"input": [{"type": "item_reference", "id": "?"}]}, "input[0].id"),
    ({"input": [USER, {"type": "compaction", "encrypted_content": "x"}]},
     "input[1].encrypted_content"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_cannot_be_done_is_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(PATH, json={"input": "hi", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert not engine.asked


async def test_names_of_a_namespace_in_the_choice(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    engine.answer = '<tool_call>\n{"name": "crm__f", "arguments": {}}\n</tool_call>'
    space = {"type": "namespace", "name": "crm", "tools": [F]}
    for choice in (
        {"type": "function", "name": "f"},
        {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    ):
        _, answer = await asked(http, engine, tools=[space], tool_choice=choice)
        (item,) = answer["output"]
        assert (item["name"], item["namespace"]) == ("f", "crm")


async def test_max_tool_calls_is_repeated(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    assert (await asked(http, engine, max_tool_calls=3))[1]["max_tool_calls"] == 3


@pytest.mark.parametrize("end", ["<think>\nLet me see", THOUGHT[:-4]])
async def test_an_answer_that_ends_in_its_reasoning(
    http: httpx.AsyncClient, engine: FakeEngine, end: str
) -> None:
    engine.answer = end
    _, whole = await asked(http, engine)
    streamed = (await http.post(PATH, json={"input": "hi", "stream": True})).text
    last = json.loads(streamed.split("\n\n")[-2].partition("data: ")[2])["response"]
    for answer in (whole, last):
        assert [item["type"] for item in answer["output"]] == ["reasoning"]
        prompt, _ = await asked(http, engine, input=[USER, *answer["output"], USER])
        assert "user:hi;assistant:Let me see" in prompt
    _, after = await asked(http, engine, previous_response_id=whole["id"])
    assert after["status"] == "completed"


async def test_items_by_reference(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    """As the AI SDK sends them: what the server has stored comes back as ids."""
    engine.answers = [THOUGHT + "I look.\n" + CALLS, "Fine."]
    tools: Any = [
        {**F, "name": "get_weather", "parameters": {"type": "object"}}, {**F, "name": "now"},
    ]  # fmt: skip
    first = await client.responses.create(model="org/fake", input="hi", tools=tools)
    kinds = [item.type for item in first.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    given: Any = [USER, *({"type": "item_reference", "id": item.id} for item in first.output)]
    for item in first.output:
        if item.type == "function_call":
            output = {"type": "function_call_output", "call_id": item.call_id, "output": "o"}
            given.append(output)
    await client.responses.create(model="org/fake", input=given, tools=tools)
    prompt = engine.tokenizer.decode(engine.asked[1].prompt)
    assert "assistant:I look.Let me see.[get_weather Paris][now ];tool:o;tool:o;" in prompt


@pytest.mark.parametrize(
    "query",
    [
        "include=message.output_text.logprobs",
        "include=a&include=b",
        "include[]=a",
        "beta=true",
        "include_obfuscation=true",
    ],
)
async def test_queries_of_stored_responses(
    http: httpx.AsyncClient, engine: FakeEngine, query: str
) -> None:
    _, made = await asked(http, engine)
    answer = await http.get(f"{PATH}/{made['id']}?{query}")
    assert answer.status_code == 200, answer.text
    assert answer.json() == made


async def test_deltas_are_padded(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = "Grüße, a little longer than the padding is."
    body = {"input": "hi", "stream": True, "stream_options": {"include_obfuscation": True}}
    seen = 0
    for event in (await http.post(PATH, json=body)).text.split("\n\n")[:-1]:
        made = json.loads(event.partition("data: ")[2])
        assert ("obfuscation" in made) == made["type"].endswith(".delta")
        if "obfuscation" in made:
            seen += 1
            assert len((made["delta"] + made["obfuscation"]).encode()) % 32 == 0
    assert seen


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions"])
async def test_chunks_are_padded(http: httpx.AsyncClient, engine: FakeEngine, path: str) -> None:
    body = {"messages": [USER]} if "chat" in path else {"prompt": "hi"}
    for tools in ({}, {"tools": [{"type": "function", "function": {"name": "f"}}]}):
        given = {**body, **(tools if "chat" in path else {}), "stream": True}
        plain = (await http.post(path, json=given)).text
        assert "obfuscation" not in plain
        given["stream_options"] = {"include_obfuscation": True}
        for event in (await http.post(path, json=given)).text.split("\n\n")[:-2]:
            made = json.loads(event.removeprefix("data: "))
            assert len(made["obfuscation"]) < 32


@pytest.mark.parametrize(
    "fields",
    [
        {"structured_outputs": {"regex": "[a-c]+", "close_within_max_tokens": True}},
        {"guided_regex": "[a-c]+"},
        {"regex": "[a-c]+"},
        {"ebnf": 'root ::= "x"'},
        {"grammar": 'root ::= "x"'},
        {"guided_choice": ["a", "b"]},
    ],
)
async def test_grammars_as_of_chats(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any]
) -> None:
    await asked(http, engine, **fields)
    assert engine.asked[0].grammar is not None
    assert engine.asked[0].close_grammar == ("structured_outputs" in fields)
    both = {"input": "hi", **fields, "text": {"format": {"type": "json_object"}}}
    answer = await http.post(PATH, json=both)
    assert answer.status_code == 400
    assert "text.format" in answer.json()["error"]["message"]

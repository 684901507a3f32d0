"""Tools and reasoning over HTTP: the prompt that the model gets, and the answer as reported."""

import json
from typing import Any

import httpx
import openai
import pytest
from openai.types.chat import ChatCompletionChunk

from pyengine.chat.template import ChatTemplate
from tests.http.fake_engine import CHATML, FakeEngine

MODEL = "org/fake"
HELLO: list[Any] = [{"role": "user", "content": "Rain in Paris?"}]
# As Qwen 3's: tools, calls, reasoning, and a switch for it.
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n<tool_call></tool_call>\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}{{ m.reasoning_content or '' }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments.city }}]"
    "{% endfor %};{% endfor %}"
    "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
)
NO_REASONING = TEMPLATE.replace("<think>\n\n</think>", "").replace("m.reasoning_content", "''")
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}
NOW: Any = {"type": "function", "function": {"name": "now"}}
THOUGHT = "<think>\nLet me see.\n</think>\n\n"
CALLS = (
    '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
    '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=THOUGHT + "I look.\n" + CALLS)


async def test_a_whole_answer(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER, NOW])
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content == "I look."
    assert choice.message.model_extra == {"reasoning_content": "Let me see."}
    calls: Any = choice.message.tool_calls
    assert [(call.function.name, call.function.arguments) for call in calls] == [
        ("get_weather", '{"city": "Paris"}'),
        ("now", "{}"),
    ]
    assert {call.type for call in calls} == {"function"}
    assert len({call.id for call in calls}) == 2
    told, _, _ = engine.tokenizer.decode(engine.asked[0].prompt).partition("\n")
    weather, now = json.loads(told)
    assert weather == WEATHER
    assert now["function"].keys() == {"name", "parameters"}


async def test_a_call_alone_has_no_content(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.answer = CALLS
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER, NOW], tool_choice="required"
    )
    assert answer.choices[0].message.content is None
    assert answer.choices[0].message.model_extra == {}
    assert len(answer.choices[0].message.tool_calls or []) == 2


async def test_an_answer_that_is_cut_short(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.chat.completions.create(
        model=MODEL, messages=HELLO, tools=[WEATHER], max_tokens=len(THOUGHT) + 70
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "length"
    calls: Any = choice.message.tool_calls
    assert '{"city": "Paris"}'.startswith(calls[0].function.arguments)


@pytest.mark.parametrize("n", [1, 2])
async def test_a_stream(client: openai.AsyncOpenAI, n: int) -> None:
    chunks = [
        chunk
        async for chunk in await client.chat.completions.create(
            model=MODEL, messages=HELLO, tools=[WEATHER, NOW], stream=True, n=n
        )
    ]
    ids = set()
    for index in range(n):
        deltas = [c.choices[0].delta for c in chunks if c.choices[0].index == index]
        assert deltas[0].role == "assistant"
        assert deltas[0].content is None
        assert "".join(d.content or "" for d in deltas) == "I look."
        thoughts = "".join((d.model_extra or {}).get("reasoning_content", "") for d in deltas)
        assert thoughts == "Let me see."
        calls: list[list[Any]] = []
        for delta in deltas:
            for call in delta.tool_calls or []:
                if call.id is not None:
                    assert call.index == len(calls)
                    assert call.type == "function"
                    assert call.function is not None
                    assert call.function.arguments == ""
                    calls.append([call.function.name, ""])
                    ids.add(call.id)
                else:
                    assert call.index == len(calls) - 1
                    assert call.function is not None
                    assert call.function.name is None
                    calls[-1][1] += call.function.arguments or ""
        assert calls == [["get_weather", '{"city": "Paris"}'], ["now", "{}"]]
        reasons = [c.choices[0].finish_reason for c in chunks if c.choices[0].index == index]
        assert [reason for reason in reasons if reason] == ["tool_calls"]
        assert reasons[-1] == "tool_calls"
    assert len(ids) == 2 * n


async def test_the_clients_own_stream(client: openai.AsyncOpenAI) -> None:
    """What puts the deltas together is OpenAI's own."""
    async with client.chat.completions.stream(
        model=MODEL, messages=HELLO, tools=[WEATHER, NOW]
    ) as stream:
        kinds = [event.type async for event in stream]
        final = await stream.get_final_completion()
    assert kinds.count("tool_calls.function.arguments.done") == 2
    assert [c.function.arguments for c in final.choices[0].message.tool_calls or []] == [
        '{"city": "Paris"}',
        "{}",
    ]


def _walk(grammar: Any) -> list[Any]:
    """All parts of a description, it among them."""
    if isinstance(grammar, list):
        return [part for each in grammar for part in _walk(each)]
    if not isinstance(grammar, dict):
        return []
    made = [grammar]
    for key in ("parts", "options", "part", "separator"):
        made += _walk(grammar.get(key))
    return made


def _texts(engine: FakeEngine) -> str:
    grammar = engine.asked[0].grammar
    return " ".join(part["text"] for part in _walk(grammar) if part["kind"] == "text")


@pytest.mark.parametrize(
    ("fields", "named", "starts_with_text"),
    [
        ({}, {"get_weather", "now"}, True),
        ({"tool_choice": "auto"}, {"get_weather", "now"}, True),
        ({"tool_choice": "none"}, set(), True),
        ({"tool_choice": "required"}, {"get_weather", "now"}, False),
        ({"tool_choice": {"type": "function", "function": {"name": "now"}}}, {"now"}, False),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "required", "tools": [NOW]},
                }
            },
            {"now"},
            False,
        ),
        (
            {
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "get_weather"}}],
                    },
                }
            },
            {"get_weather"},
            True,
        ),
    ],
)
async def test_choices(
    http: httpx.AsyncClient,
    engine: FakeEngine,
    fields: dict[str, Any],
    named: set[str],
    starts_with_text: bool,
) -> None:
    plain = [
        {"type": "function", "function": {"name": t["function"]["name"]}} for t in (WEATHER, NOW)
    ]
    body = {"model": MODEL, "messages": HELLO, "tools": plain, **fields}
    if "allowed_tools" in json.dumps(fields):
        tools = fields["tool_choice"]["allowed_tools"]["tools"]
        fields["tool_choice"]["allowed_tools"]["tools"] = [
            {"type": "function", "function": {"name": t["function"]["name"]}} for t in tools
        ]
    engine.answer = "Yes."
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["message"]["content"] == "Yes."
    texts = _texts(engine)
    assert {name for name in ("get_weather", "now") if f'"{name}"' in texts} == named
    free = [part for part in _walk(engine.asked[0].grammar) if part["kind"] == "free_text"]
    assert any(part["until"] != ["</think>", "<think>"] for part in free) == starts_with_text
    prompt = engine.tokenizer.decode(engine.asked[0].prompt)
    assert "get_weather" in prompt
    assert "now" in prompt


async def test_one_call_at_a_time(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for parallel in (True, False):
        body = {
            "model": MODEL,
            "messages": HELLO,
            "tools": [WEATHER],
            "parallel_tool_calls": parallel,
        }
        assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    several, one = (each.grammar for each in engine.asked)
    assert any(part["kind"] == "repeat" for part in _walk(several))
    assert not any(part["kind"] == "repeat" for part in _walk(one))


async def test_strict_arguments(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    strict = {"type": "function", "function": {**WEATHER["function"], "strict": True}}
    body = {"model": MODEL, "messages": HELLO, "tools": [strict, NOW], "tool_choice": "required"}
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    schemas = [p for p in _walk(engine.asked[0].grammar) if p["kind"] == "json_schema"]
    assert [each["unenforceable"] for each in schemas] == ["refuse", "ignore"]
    assert schemas[0]["schema"] == WEATHER["function"]["parameters"]


async def test_a_format_beside_tools(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.answer = THOUGHT + '{"a": 1}'
    body = {
        "model": MODEL,
        "messages": HELLO,
        "tools": [WEATHER],
        "response_format": {"type": "json_object"},
    }
    answer = await http.post("/v1/chat/completions", json=body)
    message = answer.json()["choices"][0]["message"]
    assert message["content"] == '{"a": 1}'
    assert message["reasoning_content"] == "Let me see."
    kinds = [part["kind"] for part in _walk(engine.asked[0].grammar)]
    assert {"json_object", "json_schema", "any_of"} <= set(kinds)
    assert answer.json()["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"tools": [WEATHER, WEATHER]}, "tools[1]"),
        ({"tools": [{"type": "custom", "custom": {"name": "x y"}}]}, "tools[0].custom.name"),
        ({"tools": [{"type": "teleport"}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [NOW, {"type": "function", "function": {}}]}, "tools[1].function.name"),
        (
            {"tools": [{"type": "function", "function": {"name": "a b"}}]},
            "tools[0].function.name",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "returns": 1}}]},
            "tools[0].function.returns",
        ),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "key_order": "sorted"}}]},
            "tools[0].function.key_order",
        ),
        ({"tools": [NOW], "tool_choice": "must"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        (
            {"tools": [NOW], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
        ),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({"tools": [NOW], "tool_choice": {"type": "custom"}}, "tool_choice.custom"),
        (
            {
                "tools": [NOW],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {
                        "mode": "auto",
                        "tools": [{"type": "function", "function": {"name": "x"}}],
                    },
                },
            },
            "tool_choice",
        ),
        (
            {
                "tools": [NOW],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "auto", "tools": []},
                },
            },
            "tool_choice",
        ),
        (
            {
                "tools": [NOW],
                "tool_choice": {
                    "type": "allowed_tools",
                    "allowed_tools": {"mode": "some", "tools": []},
                },
            },
            "tool_choice.allowed_tools.mode",
        ),
        ({"functions": [{"name": "f"}], "tools": [NOW]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"chat_template_kwargs": {"tools": []}}, "chat_template_kwargs.tools"),
        ({"include_reasoning": "no"}, "include_reasoning"),
    ],
)
async def test_wrong_tools_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    body = {"model": MODEL, "messages": HELLO, **fields}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not engine.asked


@pytest.mark.parametrize("template", [CHATML, "{{ messages[0].content }}<tool_call>"])
async def test_tools_that_the_model_knows_nothing_of(
    http: httpx.AsyncClient, engine: FakeEngine, template: str
) -> None:
    engine.template = ChatTemplate(template)
    body = {"model": MODEL, "messages": HELLO, "tools": [NOW]}
    error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
    assert (error["param"], error["code"]) == ("tools", "unsupported_parameter")


@pytest.mark.parametrize(
    ("tools", "message", "param"),
    [
        ([WEATHER], "too large", "tools[0].function.parameters"),
        ([NOW, WEATHER], "too large", "tools"),
        ([NOW, WEATHER], "tool 'get_weather': odd", "tools[1].function.parameters"),
        ([WEATHER, NOW], "tool 'now', parameter 'a': odd", "tools[1].function.parameters"),
    ],
)
async def test_tools_that_the_engine_refuses(
    http: httpx.AsyncClient, engine: FakeEngine, tools: Any, message: str, param: str
) -> None:
    engine.refuse_grammar = message
    for stream in (False, True):
        body = {"model": MODEL, "messages": HELLO, "tools": tools, "stream": stream}
        answer = await http.post("/v1/chat/completions", json=body)
        assert answer.status_code == 400
        assert answer.json()["error"]["param"] == param


async def test_odd_schemas_of_tools(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    odd = {"type": "object", "properties": None}
    tools = [NOW, {"type": "function", "function": {"name": "f", "parameters": odd}}]
    body = {"model": MODEL, "messages": HELLO, "tools": tools}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (warning,) = answer.json()["warnings"]
    assert "tools[1].function.parameters" in warning
    assert "'properties'" in warning
    tools[1]["function"]["parameters"] = {"type": "string"}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.json()["error"]["param"] == "tools[1].function.parameters"


async def test_a_named_format_and_none(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.template = ChatTemplate("{{ messages[0].content }}{{ tools }}")
    engine.chat_format = "mistral"
    engine.answer = '[TOOL_CALLS] [{"name": "now", "arguments": {}}]'
    body = {"model": MODEL, "messages": HELLO, "tools": [NOW]}
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"] == "now"
    engine.chat_format = "none"
    answer = (await http.post("/v1/chat/completions", json=body)).json()
    assert answer["error"]["param"] == "tools"
    answer = (await http.post("/v1/chat/completions", json={**body, "tools": None})).json()
    assert answer["choices"][0]["message"]["content"] == engine.answer


@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_may_be_left_out(http: httpx.AsyncClient, stream: bool) -> None:
    body = {
        "model": MODEL,
        "messages": HELLO,
        "tools": [WEATHER],
        "include_reasoning": False,
        "stream": stream,
    }
    answer = await http.post("/v1/chat/completions", json=body)
    assert "I look." in answer.text or stream
    assert "reasoning_content" not in answer.text
    assert "Let" not in answer.text


async def test_reasoning_may_be_switched_off(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    body = {
        "model": MODEL,
        "messages": HELLO,
        "response_format": {"type": "json_object"},
        "chat_template_kwargs": {"enable_thinking": False},
    }
    engine.answer = "{}"
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    assert engine.tokenizer.decode(engine.asked[0].prompt).endswith("<think>\n\n</think>\n\n")
    assert engine.asked[0].grammar == {"kind": "json_object", "whitespace": "single_line"}


async def test_an_effort_for_a_template_that_reads_it(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.template = ChatTemplate("{{ messages[0].content }} {{ reasoning_effort }}")
    await client.chat.completions.create(model=MODEL, messages=HELLO, reasoning_effort="low")
    assert engine.tokenizer.decode(engine.asked[0].prompt).endswith("? low")


async def test_the_answer_comes_back(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    """An agent's loop: the message goes back as it came, with the tools' answers."""
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, tools=[WEATHER, NOW])
    message = answer.choices[0].message
    engine.answer = "No rain."
    again = [
        *HELLO,
        message.model_dump(),
        *(
            {"role": "tool", "tool_call_id": call.id, "content": "dry"}
            for call in message.tool_calls or []
        ),
    ]
    final = await client.chat.completions.create(model=MODEL, messages=again, tools=[WEATHER, NOW])
    assert final.choices[0].message.content == "No rain."
    assert final.choices[0].finish_reason == "stop"
    prompt = engine.tokenizer.decode(engine.asked[1].prompt)
    assert prompt.endswith(
        "assistant:I look.Let me see.[get_weather Paris][now ];tool:dry;tool:dry;"
    )


def _answered(index: object = None, name: object = None) -> list[Any]:
    """A conversation with two calls, the second as given, and the answer to it."""
    calls = [
        {"id": "a", "type": "function", "function": {"name": "now", "arguments": "{}"}},
        {
            "id": "b",
            "type": "function",
            "function": {"name": "get_weather", "arguments": '{"city": "Rome"}'},
            "index": index,
        },
    ]
    answer = {"role": "tool", "tool_call_id": "b", "content": "dry", "name": name}
    return [*HELLO, {"role": "assistant", "content": None, "tool_calls": calls}, answer]


@pytest.mark.parametrize(
    ("index", "name", "param"),
    [
        (1, "get_weather", None),
        (0, None, "messages[1].tool_calls[1].index"),
        ("1", None, "messages[1].tool_calls[1].index"),
        (None, "now", "messages[2].name"),
    ],
)
async def test_result_may_repeat_index_and_name_of_its_call(
    http: httpx.AsyncClient, engine: FakeEngine, index: object, name: object, param: str | None
) -> None:
    body = {"model": MODEL, "messages": _answered(index, name), "tools": [WEATHER, NOW]}
    answer = await http.post("/v1/chat/completions", json=body)
    if param is not None:
        assert answer.json()["error"]["param"] == param
        return
    assert answer.status_code == 200, answer.text
    engine.template = ChatTemplate(TEMPLATE.replace("m.role }}:", "m.role }}:{{ m.name }}"))
    assert (await http.post("/v1/chat/completions", json=body)).status_code == 200
    without, with_name = (engine.tokenizer.decode(asked.prompt) for asked in engine.asked)
    assert without.endswith("tool:dry;")
    assert with_name.endswith("tool:get_weatherdry;")


@pytest.mark.parametrize("template", [TEMPLATE.replace("m.reasoning_content", "''"), NO_REASONING])
@pytest.mark.parametrize("stream", [False, True])
async def test_reasoning_that_the_template_does_not_read(
    http: httpx.AsyncClient, engine: FakeEngine, template: str, stream: bool
) -> None:
    engine.template = ChatTemplate(template)
    thought = {"role": "assistant", "content": "x", "reasoning_content": "hm"}
    body = {"model": MODEL, "messages": [*HELLO, thought, *HELLO], "stream": stream}
    answer = await http.post("/v1/chat/completions", json=body)
    at = "messages[].reasoning_content"
    text = answer.text.split("\n\n")[0].removeprefix("data: ") if stream else answer.text
    assert at in json.loads(text)["warnings"][0]


def test_chunks_are_the_clients() -> None:
    """The chunks above came through a client that takes anything: here it is strict."""
    from pyengine.chat.answer import ChatUpdate, ToolCallDelta
    from pyengine.completion import Usage
    from pyengine.http.openai.completions.chunks import AnswerChunks
    from tests.http.stream_fields import stream_fields

    chunks = AnswerChunks(stream_fields("id", 1, "m", usage=True))
    calls = (ToolCallDelta(0, "c", 'f"', ""), ToolCallDelta(0, None, None, '{"a'))
    usage = Usage(1, 0, 1, reasoning_tokens=1)
    update = ChatUpdate("tëxt", [], "tool_calls", None, None, usage, (), "hm", calls)
    data = chunks.first(0, update) + chunks.update(0, update) + chunks.last([usage])
    events = data.decode().split("\n\n")[:-2]
    made = [ChatCompletionChunk.model_validate_json(event[6:], strict=True) for event in events]
    assert made[-1].usage is not None
    assert made[-1].usage.completion_tokens_details is not None
    assert made[-1].usage.completion_tokens_details.reasoning_tokens == 1
    assert len(made) == 7

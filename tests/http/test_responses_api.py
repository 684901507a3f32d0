"""``/v1/responses`` through OpenAI's client: items in, items out, and the events between."""

import json
from typing import Any

import httpx
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.errors import EngineDeadError
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.http.test_tools import CALLS, TEMPLATE, THOUGHT

MODEL = "org/fake"
WEATHER: Any = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
    },
    "strict": None,
}
ONLY_NOW = {"type": "function", "name": "now"}
NOW: Any = {"type": "function", "name": "now", "parameters": None, "strict": True}


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), answer=THOUGHT + "I look.\n" + CALLS)


async def test_text(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.answer = ANSWER
    answer = await client.responses.create(
        model=MODEL, input="hello", instructions="Be brief.", temperature=0.5, top_p=0.9
    )
    assert answer.output_text == ANSWER
    assert answer.status == "completed"
    assert answer.id.startswith("resp_")
    assert answer.usage is not None
    prompt = engine.asked[0].prompt
    assert answer.usage.input_tokens == len(prompt)
    assert answer.usage.output_tokens == len(ANSWER)
    assert answer.usage.total_tokens == len(prompt) + len(ANSWER)
    assert answer.usage.input_tokens_details.cached_tokens == len(prompt) // 2
    assert (answer.temperature, answer.top_p, answer.instructions) == (0.5, 0.9, "Be brief.")
    assert engine.tokenizer.decode(prompt) == "system:Be brief.;user:hello;"
    params = engine.asked[0].params
    assert (params.temperature, params.top_p, params.max_tokens) == (0.5, 0.9, None)


async def test_fields_that_a_router_adds_are_taken(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.answer = ANSWER
    added: Any = {"priority": 3, "top_k": -1, "min_p": 0.1, "repetition_penalty": 1.5}
    for stream in (False, True):
        answer: Any = await client.responses.create(
            model=MODEL, input="hello", store=True, stream=stream, extra_body=added
        )
        if stream:
            answer = [event async for event in answer][-1].response
        assert not hasattr(answer, "warnings")
        asked = engine.asked[-1]
        assert asked.priority == 3
        params = asked.params
        assert (params.top_k, params.min_p, params.repetition_penalty) == (0, 0.1, 1.5)


async def test_an_answer_that_is_cut_short(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    engine.answer = ANSWER
    answer = await client.responses.create(model=MODEL, input="hello", max_output_tokens=5)
    assert answer.output_text == ANSWER[:5]
    assert answer.status == "incomplete"
    assert answer.incomplete_details is not None
    assert answer.incomplete_details.reason == "max_output_tokens"
    async with client.responses.stream(model=MODEL, input="hello", max_output_tokens=5) as stream:
        events = [event async for event in stream]
    assert events[-1].type == "response.incomplete"


async def test_items_of_an_answer(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.responses.create(model=MODEL, input="hello", tools=[WEATHER, NOW])
    kinds = [item.type for item in answer.output]
    assert kinds == ["reasoning", "message", "function_call", "function_call"]
    calls: list[Any] = [item for item in answer.output if item.type == "function_call"]
    assert [(call.name, call.arguments) for call in calls] == [
        ("get_weather", '{"city": "Paris"}'),
        ("now", "{}"),
    ]
    thought: Any = answer.output[0]
    assert thought.content[0].text == "Let me see."
    assert answer.output_text == "I look."
    # As it came, it goes back; with what the tools gave.
    engine.answer = "dry"
    outputs = [
        {"type": "function_call_output", "call_id": call.call_id, "output": "no rain"}
        for call in calls
    ]
    before = [item.model_dump(exclude_unset=True) for item in answer.output]
    again: Any = [{"role": "user", "content": "hello"}, *before, *outputs]
    final = await client.responses.create(model=MODEL, input=again, tools=[WEATHER, NOW])
    assert final.output_text == "dry"
    assert engine.tokenizer.decode(engine.asked[1].prompt).endswith(
        "user:hello;assistant:I look.Let me see.[get_weather Paris][now ];"
        "tool:no rain;tool:no rain;"
    )


async def test_events(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    kinds: list[str] = []
    texts = {"response.output_text.delta": "", "response.reasoning_text.delta": ""}
    arguments: dict[str, str] = {}
    numbers = []
    events = await client.responses.create(
        model=MODEL, input="hello", tools=[WEATHER, NOW], stream=True
    )
    final = None
    async for event in events:
        numbers.append(event.sequence_number)
        if not kinds or kinds[-1] != event.type:
            kinds.append(event.type)
        if event.type in texts:
            texts[event.type] += getattr(event, "delta", "")
        if event.type == "response.function_call_arguments.delta":
            arguments[event.item_id] = arguments.get(event.item_id, "") + event.delta
        if event.type == "response.completed":
            final = event.response
    assert numbers == list(range(len(numbers)))
    call = [
        "response.output_item.added",
        "response.function_call_arguments.delta",
        "response.function_call_arguments.done",
        "response.output_item.done",
    ]
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.reasoning_text.delta",
        "response.reasoning_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        *call,
        *call,
        "response.completed",
    ]
    assert texts == {
        "response.output_text.delta": "I look.",
        "response.reasoning_text.delta": "Let me see.",
    }
    assert final is not None
    calls = [item for item in final.output if item.type == "function_call"]
    assert {item.id: item.arguments for item in calls} == arguments
    assert list(arguments.values()) == ['{"city": "Paris"}', "{}"]
    assert final.usage is not None


async def test_the_clients_own_stream(client: openai.AsyncOpenAI) -> None:
    async with client.responses.stream(model=MODEL, input="hello", tools=[WEATHER, NOW]) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_text == "I look."
    assert len([item for item in final.output if item.type == "function_call"]) == 2


async def test_lines_of_events_name_them(http: httpx.AsyncClient) -> None:
    body = {"model": MODEL, "input": "hello", "tools": [WEATHER, NOW], "stream": True}
    answer = await http.post("/v1/responses", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    for event in answer.text.split("\n\n")[:-1]:
        name, data = event.split("\n")
        assert json.loads(data.removeprefix("data: "))["type"] == name.removeprefix("event: ")


async def test_a_coding_agents_turns(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    """As Codex sends them: nothing is stored, and all items come back with the tool's output."""
    call = '<tool_call>\n{"name": "shell", "arguments": {"command": ["ls"]}}\n</tool_call>'
    engine.answers = [THOUGHT + call, "There is one file."]
    shell = {
        "type": "function",
        "name": "shell",
        "description": "Runs a command.",
        "strict": False,
        "parameters": {
            "type": "object",
            "properties": {"command": {"type": "array", "items": {"type": "string"}}},
            "required": ["command"],
            "additionalProperties": False,
        },
    }
    user = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "ls?"}]}
    body: dict[str, Any] = {
        "model": MODEL,
        "instructions": "You are a coding agent.",
        "input": [user],
        "tools": [shell],
        "tool_choice": "auto",
        "parallel_tool_calls": False,
        "reasoning": {"effort": "medium", "summary": "auto"},
        "store": False,
        "stream": True,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "4f1c",
        "service_tier": None,
        "text": {"verbosity": "medium"},
    }

    async def turn() -> list[dict[str, Any]]:
        text = (await http.post("/v1/responses", json=body)).text
        events = [json.loads(event.partition("data: ")[2]) for event in text.split("\n\n")[:-1]]
        assert events[-1]["type"] == "response.completed", text
        # The client takes the items from the events, not from the whole.
        return [each["item"] for each in events if each["type"] == "response.output_item.done"]

    thought, called = await turn()
    assert (called["name"], json.loads(called["arguments"])) == ("shell", {"command": ["ls"]})
    assert thought["encrypted_content"]
    del thought["content"]
    output = json.dumps({"output": "a.py", "metadata": {"exit_code": 0}})
    done = {"type": "function_call_output", "call_id": called["call_id"], "output": output}
    body["input"] = [user, thought, called, done]
    [said] = await turn()
    assert said["content"][0]["text"] == "There is one file."
    prompt = engine.tokenizer.decode(engine.asked[1].prompt)
    assert "system:You are a coding agent.;user:ls?;assistant:Let me see." in prompt
    assert "a.py" in prompt


FORMAT: Any = {
    "type": "json_schema",
    "name": "x",
    "schema": {"type": "object", "properties": {"a": {"type": "integer"}}},
}


@pytest.mark.parametrize(
    ("given", "grammar"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"kind": "json_object", "whitespace": "single_line"}),
        (
            FORMAT,
            {
                "kind": "json_schema",
                "schema": FORMAT["schema"],
                "whitespace": "single_line",
                "unenforceable": "refuse",
            },
        ),
        (
            {**FORMAT, "strict": False},
            {
                "kind": "json_schema",
                "schema": FORMAT["schema"],
                "whitespace": "single_line",
                "unenforceable": "ignore",
            },
        ),
    ],
)
async def test_formats(
    client: openai.AsyncOpenAI, engine: FakeEngine, given: Any, grammar: Any
) -> None:
    engine.template = ChatTemplate("{{ messages[0].content }}")
    engine.answer, engine.warnings = "{}", ("careful",)
    answer = await client.responses.create(model=MODEL, input="hello", text={"format": given})
    assert engine.asked[0].grammar == grammar
    assert (answer.model_extra or {})["warnings"] == ["careful"]
    assert answer.text is not None
    assert answer.text.format is not None
    assert answer.text.format.type == given["type"]
    engine.refuse_grammar = "no"
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refusal:
            await client.responses.create(
                model=MODEL, input="hello", text={"format": given}, stream=stream
            )
        assert refusal.value.param == "text.format"


@pytest.mark.parametrize(
    ("choice", "required"),
    [
        ("required", True),
        ({"type": "function", "name": "now"}, True),
        ({"type": "allowed_tools", "mode": "required", "tools": [ONLY_NOW]}, True),
        ({"type": "allowed_tools", "mode": "auto", "tools": [ONLY_NOW]}, False),
        ("auto", False),
        ("none", False),
    ],
)
async def test_choices(
    client: openai.AsyncOpenAI, engine: FakeEngine, choice: Any, required: bool
) -> None:
    engine.answer = CALLS.split("\n", 3)[-1] if required else "hi"
    answer = await client.responses.create(
        model=MODEL,
        input="hello",
        tools=[WEATHER, NOW],
        tool_choice=choice,
        parallel_tool_calls=False,
    )
    grammar = json.dumps(engine.asked[0].grammar)
    only_now = not isinstance(choice, str)
    assert ("get_weather" in grammar) == (not only_now and choice != "none")
    assert ('\\"now\\"' in grammar) == (choice != "none")
    assert answer.parallel_tool_calls is False
    assert answer.output_text == ("" if required else "hi")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1", "previous_response_id": "resp_1"}, "conversation"),
        ({"background": True, "store": False}, "background"),
        ({"truncation": "middle"}, "truncation"),
        ({"metadata": {"a": "x" * 513}}, "metadata"),
        ({"include": ["x"]}, "include[0]"),
        ({"n": 2}, "n"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"temperature": 3}, "temperature"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": {**FORMAT, "name": "a b"}}}, "text.format.name"),
        ({"reasoning": {"mode": "pro"}}, "reasoning.mode"),
        ({"stream_options": {}}, "stream_options"),
        ({"tools": [{"type": "function"}]}, "tools[0].name"),
        ({"tools": [NOW], "tool_choice": {"type": "function", "name": "x"}}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": {"type": "mcp"}}, "tool_choice.type"),
        ({"tools": [NOW], "tool_choice": {"type": "function"}}, "tool_choice.name"),
        ({"tools": [NOW], "tool_choice": {"type": "allowed_tools"}}, "tool_choice.tools"),
        (
            {
                "tools": [NOW],
                "tool_choice": {"type": "allowed_tools", "mode": "may", "tools": [ONLY_NOW]},
            },
            "tool_choice.mode",
        ),
        (
            {
                "tools": [NOW],
                "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "x"}]},
            },
            "tool_choice.tools[0]",
        ),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"input": []}, "input"),
        ({"input": [5]}, "input[0]"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0].id"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role"),
        ({"input": [{"role": "user", "content": "x", "more": 1}]}, "input[0].more"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text"}]}]},
            "input[0].content[0].text",
        ),
        (
            {"input": [{"type": "reasoning", "id": "r", "content": [{"type": "x"}]}]},
            "input[0].content[0].type",
        ),
        (
            {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
            "input",
        ),
    ],
)
async def test_wrong_requests_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post("/v1/responses", json={"model": MODEL, "input": "hello", **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert not engine.asked


async def test_a_failure_within_the_stream(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    engine.fail_after = (3, EngineDeadError("the engine failed"))
    answer = await http.post(
        "/v1/responses", json={"model": MODEL, "input": "hello", "stream": True}
    )
    events = [json.loads(e.split("\ndata: ")[1]) for e in answer.text.split("\n\n")[:-1]]
    assert [event["type"] for event in events[-2:]] == ["error", "response.failed"]
    assert events[-2]["message"] == "the engine failed"
    assert events[-1]["response"]["status"] == "failed"
    assert events[-1]["response"]["error"]["message"] == "the engine failed"


async def test_generation_ends_when_the_client_leaves(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.hold_after = 2
    stream = await client.responses.create(model=MODEL, input="hello", stream=True)
    async for _ in stream:
        break
    await stream.close()
    await engine.until(lambda: not engine.running)
    assert engine.aborted == 1

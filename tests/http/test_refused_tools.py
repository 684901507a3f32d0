"""Which tool is at fault, when the real engine refuses the schema of one among several."""

from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest

from pyengine import AsyncEngine

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
ODD = {"type": "object", "properties": {"city": {"type": "string", "pattern": r"^(.)\1$"}}}
WHY = "'pattern' at #/properties/city"
FORMATS = ["hermes", "gpt_oss", "mistral", "llama_pythonic", "qwen3_coder"]


@pytest.fixture(params=FORMATS)
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server", chat_format=request.param) as engine:
        yield engine


def _tools(*functions: tuple[str, Any, bool]) -> Any:
    return [
        {"type": "function", "name": name, "parameters": parameters, "strict": strict}
        for name, parameters, strict in functions
    ]


def _in_chat(tools: Any) -> Any:
    return [
        {"type": "function", "function": {key: tool[key] for key in tool if key != "type"}}
        for tool in tools
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_tool_is_named(
    engine: AsyncEngine, client: openai.AsyncOpenAI, stream: bool
) -> None:
    tools = _tools(("clock", CITY, True), ("weather", ODD, True), ("map", CITY, False))
    model = engine.model_name
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.chat.completions.create(
            model=model, messages=QUESTION, tools=_in_chat(tools), stream=stream
        )
    assert refusal.value.param == "tools[1].function.parameters"
    assert "weather" in refusal.value.message or "city" in refusal.value.message
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(model=model, input="hi", tools=tools, stream=stream)
    assert refusal.value.param == "tools[1].parameters"
    assert "function.parameters" not in refusal.value.message


@pytest.mark.parametrize("engine", ["hermes"], indirect=True)
async def test_unenforced_parts_are_warned_of_by_tool(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    tools = _tools(("clock", CITY, True), ("weather", ODD, False))
    asked: Any = {"model": engine.model_name, "input": "hi", "max_output_tokens": 4}
    answer = await client.responses.create(tools=tools, **asked)
    assert (answer.model_extra or {})["warnings"] == [f"tool 'weather': {WHY} is not enforced"]
    malformed = {"type": "object", "properties": None}
    answer = await client.responses.create(tools=_tools(("f", malformed, False)), **asked)
    (warning,) = (answer.model_extra or {})["warnings"]
    assert warning.startswith("tools[0].parameters: 'properties'")
    tools = _tools(("clock", CITY, True), ("f", {"type": "string"}, False))
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(tools=tools, **asked)
    assert refusal.value.param == "tools[1].parameters"


@pytest.mark.parametrize("engine", ["hermes"], indirect=True)
async def test_the_text_is_at_fault_though_there_are_tools(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    tools = _tools(("clock", CITY, True), ("map", CITY, True))
    schema: Any = {
        "type": "json_schema",
        "json_schema": {"name": "x", "schema": ODD, "strict": True},
    }
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.chat.completions.create(
            model=engine.model_name,
            messages=QUESTION,
            tools=_in_chat(tools),
            response_format=schema,
        )
    assert refusal.value.param == "response_format"
    assert f"{WHY} cannot be enforced" in refusal.value.message
    text: Any = {"format": {"type": "json_schema", "name": "x", "schema": ODD, "strict": True}}
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(model=engine.model_name, input="hi", tools=tools, text=text)
    assert refusal.value.param == "text.format"

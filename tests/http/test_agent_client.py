"""What authors of agents do with OpenAI's client: parse, stream, call tools, send answers back."""

from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pydantic
import pytest

from pyengine import AsyncEngine

QUESTION: Any = [{"role": "user", "content": "What is the weather in Paris and Rome?"}]


Unit = Literal["celsius", "fahrenheit"]


class Circle(pydantic.BaseModel):
    kind: Literal["circle"]
    radius: Literal[1, 2, 3]


class Square(pydantic.BaseModel):
    kind: Literal["square"]
    sides: tuple[Literal[4], Literal[5]]


class Node(pydantic.BaseModel):
    name: Literal["leaf", "branch"]
    children: list["Node"] = pydantic.Field(max_length=1)


class Answer(pydantic.BaseModel):
    """Nested definitions, a union, a recursion and a null."""

    shapes: list[Circle | Square] = pydantic.Field(min_length=1, max_length=2)
    unit: Unit | None
    tree: Node
    final: Literal[7, 11]


class GetWeather(pydantic.BaseModel):
    """The weather in a city."""

    city: Literal["Paris", "Rome"]
    unit: Unit


class Now(pydantic.BaseModel):
    """The time."""


WEATHER: Any = openai.pydantic_function_tool(GetWeather)
NOW: Any = openai.pydantic_function_tool(Now)
FLAT: Any = [{"type": "function", **tool["function"]} for tool in (WEATHER, NOW)]


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine(mode="server") as engine:
        yield engine


@pytest.fixture
def asked(engine: AsyncEngine) -> dict[str, Any]:
    return {"model": engine.model_name, "messages": QUESTION, "max_tokens": 300, "seed": 3}


# The client warns of its own model when it sends what it has parsed.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings")
async def test_parse_and_stream_the_same_model(
    client: openai.AsyncOpenAI, asked: dict[str, Any]
) -> None:
    answer = await client.chat.completions.parse(response_format=Answer, **asked)
    parsed = answer.choices[0].message.parsed
    assert isinstance(parsed, Answer)
    kinds = set()
    usage: Any = {"include_usage": True}
    async with client.chat.completions.stream(
        response_format=Answer, stream_options=usage, logprobs=True, **asked
    ) as stream:
        async for event in stream:
            kinds.add(event.type)
        final = await stream.get_final_completion()
    assert kinds == {
        "chunk",
        "content.delta",
        "content.done",
        "logprobs.content.delta",
        "logprobs.content.done",
    }
    assert final.choices[0].message.parsed == parsed
    assert final.usage is not None
    assert answer.usage is not None
    assert final.usage.completion_tokens == answer.usage.completion_tokens
    told = final.choices[0].logprobs
    assert told is not None
    assert "".join(entry.token for entry in told.content or ()) == final.choices[0].message.content
    # Back it goes, with what the client has read out of it.
    for message in (answer.choices[0].message, final.choices[0].message):
        again: Any = {**asked, "messages": [*QUESTION, message, *QUESTION], "max_tokens": 3}
        assert (await client.chat.completions.create(**again)).choices[0].message.content


async def test_a_response_is_parsed(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> None:
    given: Any = {"model": asked["model"], "input": QUESTION, "max_output_tokens": 300}
    answer = await client.responses.parse(text_format=Answer, temperature=0, **given)
    assert isinstance(answer.output_parsed, Answer)
    async with client.responses.stream(text_format=Answer, temperature=0, **given) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_parsed == answer.output_parsed
    for items in (answer.output, [item.model_dump() for item in final.output]):
        again: Any = {**given, "input": [*QUESTION, *items, *QUESTION], "max_output_tokens": 3}
        assert (await client.responses.create(**again)).output_text


async def test_a_tool_in_a_stream(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> None:
    given: Any = {**asked, "tools": [WEATHER, NOW], "tool_choice": "required"}
    async with client.chat.completions.stream(parallel_tool_calls=False, **given) as stream:
        done = [
            (event.name, event.parsed_arguments)
            async for event in stream
            if event.type == "tool_calls.function.arguments.done"
        ]
        final = await stream.get_final_completion()
    assert final.choices[0].finish_reason == "tool_calls"
    (call,) = final.choices[0].message.tool_calls or []
    assert done == [(call.function.name, call.function.parsed_arguments)]
    kinds = {"GetWeather": GetWeather, "Now": Now}
    assert isinstance(call.function.parsed_arguments, kinds[call.function.name])


async def test_a_round_of_tools(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> None:
    named: Any = {"type": "function", "function": {"name": "GetWeather"}}
    asked["tools"] = [WEATHER, NOW]
    parsed = await client.chat.completions.parse(tool_choice=named, **asked)
    plain = await client.chat.completions.create(tool_choice=named, **asked)
    for message in (parsed.choices[0].message, plain.choices[0].message):
        (call,) = message.tool_calls or []
        assert call.type == "function"
        assert call.function.name == "GetWeather"
        assert GetWeather.model_validate_json(call.function.arguments)
        said = {"role": "tool", "tool_call_id": call.id, "content": "Sunny."}
        for back in (message, message.model_dump(), message.to_dict()):
            again: Any = {**asked, "messages": [*QUESTION, back, said]}
            answer = await client.chat.completions.create(tool_choice="none", **again)
            assert answer.choices[0].message.tool_calls is None


async def test_a_round_of_tools_in_responses(
    client: openai.AsyncOpenAI, asked: dict[str, Any]
) -> None:
    given: Any = {"model": asked["model"], "tools": FLAT, "max_output_tokens": 200}
    named: Any = {"type": "function", "name": "GetWeather"}
    parsed = await client.responses.parse(input=QUESTION, tool_choice=named, **given)
    (item,) = parsed.output
    assert item.type == "function_call"
    assert GetWeather.model_validate_json(item.arguments)
    said: Any = {"type": "function_call_output", "call_id": item.call_id, "output": "Sunny."}
    for back in (item, item.model_dump(), item.to_dict()):
        again: Any = [*QUESTION, back, said]
        answer = await client.responses.create(input=again, tool_choice="none", **given)
        assert [part.type for part in answer.output] == ["message"]
    refused: Any = {**item.to_dict(), "async": True}
    with pytest.raises(openai.BadRequestError) as refusal:
        await client.responses.create(input=[*QUESTION, refused, said], **given)
    assert refusal.value.param == "input[1].async"

"""Conversations through the library and through the endpoint, with the engine behind both."""

import asyncio
import dataclasses
import json
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from pyengine import AsyncEngine, Engine, SamplingParams
from pyengine.chat.tools import Named, Tool
from pyengine.errors import ConfigError, InvalidGrammarError, InvalidRequestError
from pyengine.grammar import choice, json_schema, parse_answer
from pyengine.http.serving.server import HttpServer
from pyengine.settings.config import EngineConfig

# One engine for all: the last test looks whether anything was left behind.
pytestmark = pytest.mark.asyncio(loop_scope="module")

QUESTION: list[Any] = [{"role": "user", "content": "What is the weather in Paris?"}]
GREEDY = SamplingParams(temperature=0, max_tokens=60)
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the weather in a city.",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

NAMED: Any = {"type": "function", "function": {"name": "get_weather"}}
ALLOWED: Any = {
    "type": "allowed_tools",
    "allowed_tools": {"mode": "required", "tools": [NAMED]},
}


@dataclasses.dataclass
class City:
    name: str
    people: int


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine() -> AsyncIterator[AsyncEngine]:
    async with AsyncEngine() as engine:
        yield engine


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(engine: AsyncEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    server = HttpServer(engine, port=0)
    await server.start()
    url = f"{server.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client
    await server.stop(0)


async def test_a_tool_is_called_and_its_answer_read(engine: AsyncEngine) -> None:
    answer = await engine.chat(QUESTION, GREEDY, tools=[WEATHER])
    assert answer.finish_reason == "tool_calls"
    (call,) = answer.tool_calls
    assert (call.name, json.loads(call.arguments)) == ("get_weather", {"city": "Paris"})
    assert answer.text == ""
    result = {"role": "tool", "tool_call_id": call.id, "content": "rain, 12 degrees"}
    final = await engine.chat([*QUESTION, answer.message, result], GREEDY, tools=[WEATHER])
    assert final.finish_reason == "stop"
    assert "12" in final.text


async def test_the_endpoint_gives_the_same(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    model = engine.model_name
    ours = await engine.chat(QUESTION, GREEDY, tools=[Tool.from_openai(WEATHER)])
    asked: dict[str, Any] = {
        "model": model,
        "messages": QUESTION,
        "tools": [WEATHER],
        "temperature": 0,
        "max_tokens": 60,
    }
    theirs = (await client.chat.completions.create(**asked)).choices[0]
    (call,) = theirs.message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == ours.tool_calls[0].name
    assert call.function.arguments == ours.tool_calls[0].arguments
    async with client.chat.completions.stream(**asked) as stream:
        streamed = (await stream.get_final_completion()).choices[0]
    assert streamed.finish_reason == theirs.finish_reason == "tool_calls"
    (call,) = streamed.message.tool_calls or []
    assert call.function.arguments == ours.tool_calls[0].arguments


async def test_typed_answers(engine: AsyncEngine) -> None:
    for seed in range(2):
        params = SamplingParams(seed=seed, max_tokens=400, temperature=0.3)
        answer = await engine.chat(QUESTION, params, grammar=json_schema(City))
        assert isinstance(parse_answer(answer.text, City), City)


@pytest.mark.parametrize("wanted", ["required", Named("get_weather"), NAMED, ALLOWED])
async def test_a_call_that_must_be(engine: AsyncEngine, wanted: Any) -> None:
    tools = [WEATHER, Tool("now")]
    hello = [{"role": "user", "content": "Hello!"}]
    params = SamplingParams(seed=3, max_tokens=200)
    answer = await engine.chat(
        hello, params, tools=tools, tool_choice=wanted, parallel_tool_calls=False
    )
    (call,) = answer.tool_calls
    assert wanted == "required" or call.name == "get_weather"
    assert isinstance(json.loads(call.arguments), dict)
    other = await engine.chat(hello, GREEDY, tools=tools, allowed_tools=["now"])
    assert {call.name for call in other.tool_calls} <= {"now"}
    none = await engine.chat(QUESTION, GREEDY, tools=tools, tool_choice="none")
    assert none.tool_calls == ()
    assert "tool_call" not in none.text


@pytest.mark.parametrize(
    ("key_order", "order"), [("schema", ["north", "south"]), ("any", ["south", "north"])]
)
async def test_arguments_in_an_order(
    engine: AsyncEngine, client: openai.AsyncOpenAI, key_order: Any, order: list[str]
) -> None:
    parameters: dict[str, Any] = {
        "type": "object",
        "properties": {"north": {"type": "boolean"}, "south": {"type": "boolean"}},
        "additionalProperties": False,
        "required": ["north", "south"],
    }
    # The model would begin with the first key: it must not, where it has a choice.
    decode = engine.tokenizer.decode
    ids = range(engine.tokenizer.vocab_size)
    bias = {token: -100.0 for token in ids if decode([token]).lstrip('{" ').startswith("n")}
    answer = await engine.chat(
        QUESTION,
        SamplingParams(temperature=0, max_tokens=60, logit_bias=bias),
        tools=[Tool("look", parameters=parameters, key_order=key_order)],
        tool_choice=Named("look"),
    )
    assert list(json.loads(answer.tool_calls[0].arguments)) == order
    function: Any = {"name": "look", "parameters": parameters, "key_order": key_order}
    told = await client.chat.completions.create(
        model=engine.model_name,
        messages=QUESTION,
        tools=[{"type": "function", "function": function}],
        tool_choice={"type": "function", "function": {"name": "look"}},
        temperature=0,
        max_tokens=60,
        logit_bias={str(token): -100 for token in bias},
    )
    calls: Any = told.choices[0].message.tool_calls
    assert calls[0].function.arguments == answer.tool_calls[0].arguments
    listed: Any = [{"type": "function", **function, "strict": None}]
    shown = await client.responses.create(
        model=engine.model_name,
        input="Look!",
        tools=listed,
        tool_choice="required",
        max_output_tokens=60,
        store=False,
    )
    assert shown.tools[0].to_dict().get("key_order", "schema") == key_order


async def test_choices_of_the_endpoint_are_seeds_of_the_library(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    story: list[Any] = [{"role": "user", "content": "Tell me a story."}]
    answer = await client.chat.completions.create(
        model=engine.model_name, messages=story, n=3, seed=5, max_tokens=20, temperature=1.5
    )
    texts = [one.message.content for one in answer.choices]
    assert len(set(texts)) > 1
    for i, text in enumerate(texts):
        params = SamplingParams(seed=5 + i, max_tokens=20, temperature=1.5)
        alone = await engine.chat(story, params)
        assert alone.text == text


async def test_a_choice_of_the_answer(engine: AsyncEngine, client: openai.AsyncOpenAI) -> None:
    words = ["sunny", "cloudy"]
    answer = await engine.chat(QUESTION, grammar=choice(words))
    assert answer.text in words
    completion = await client.completions.create(
        model=engine.model_name, prompt="It is", extra_body={"guided_choice": words}
    )
    assert completion.choices[0].text in words
    options = {"regex": "[0-9]{4}"}
    whole = await client.chat.completions.create(
        model=engine.model_name, messages=QUESTION, extra_body={"structured_outputs": options}
    )
    assert len(whole.choices[0].message.content or "") == 4


async def test_format_that_cannot_be_enforced_is_refused(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    with pytest.raises(InvalidGrammarError) as refusal:
        await engine.chat(QUESTION, GREEDY, grammar=json_schema({"$ref": "#/nowhere"}))
    assert refusal.value.param == "grammar"
    schema: Any = {"name": "x", "schema": {"$ref": "#/nowhere"}}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as answer:
            await client.chat.completions.create(
                model=engine.model_name,
                messages=QUESTION,
                stream=stream,
                response_format={"type": "json_schema", "json_schema": schema},
            )
        assert answer.value.param == "response_format"
    broken = {"name": "f", "parameters": {"type": "object", "properties": {"a": {"$ref": "#/b"}}}}
    with pytest.raises(openai.BadRequestError) as answer:
        await client.chat.completions.create(
            model=engine.model_name,
            messages=QUESTION,
            tools=[{"type": "function", "function": broken}],  # type: ignore[typeddict-item]
        )
    assert answer.value.param == "tools[0].function.parameters"


@pytest.mark.parametrize(
    ("options", "param"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": Named("x")}, "tool_choice"),
        ({"tools": [WEATHER], "allowed_tools": ["x"]}, "tool_choice"),
        ({"tools": "now"}, "tools"),
        ({"tools": ["now"]}, "tools[0]"),
        ({"tools": [WEATHER], "tool_choice": "get_weather"}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": None}, "tool_choice"),
        ({"tools": [WEATHER], "tool_choice": {"type": "custom"}}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "name": "get_weather"}},
            "tool_choice.function.name",
        ),
        ({"tools": [WEATHER], "tool_choice": ALLOWED, "allowed_tools": []}, "allowed_tools"),
        ({"tools": [WEATHER], "allowed_tools": "get_weather"}, "allowed_tools"),
        ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({"grammar": {"type": "object"}}, "grammar"),
        ({"reasoning": "low"}, "reasoning"),
        ({"template_arguments": ["x"]}, "template_arguments"),
        ({"close_grammar": True}, "close_grammar"),
        ({"reasoning": True}, "reasoning"),
        ({"template_arguments": {"messages": []}}, "template_arguments.messages"),
    ],
)
async def test_impossible_options_are_refused_by_name(
    engine: AsyncEngine, options: dict[str, Any], param: str
) -> None:
    with pytest.raises(InvalidRequestError) as refusal:
        engine.chat(QUESTION, **options)
    assert refusal.value.param == param


async def test_render_takes_what_chat_takes(engine: AsyncEngine) -> None:
    plain = engine.render(QUESTION, reasoning=False, template_arguments={})
    assert plain == engine.render(QUESTION)
    assert len(engine.render(QUESTION, tools=[WEATHER])) > len(plain)
    refused: tuple[dict[str, Any], ...] = (
        {"reasoning": True},
        {"template_arguments": {"messages": []}},
    )
    for options in refused:
        with pytest.raises(InvalidRequestError):
            engine.render(QUESTION, **options)


async def test_variables_that_the_template_does_not_read_are_told(engine: AsyncEngine) -> None:
    plain = engine.render(QUESTION)
    assert engine.render(QUESTION, template_arguments={"nothing": 1}) == plain
    answer = await engine.chat(QUESTION, GREEDY, template_arguments={"nothing": 1})
    assert any("'nothing'" in warning for warning in answer.warnings)


async def test_the_format_may_be_named(engine: AsyncEngine) -> None:
    assert engine.handler.format is not None
    assert engine.handler.format.name == "hermes"
    with pytest.raises(ConfigError, match="mistral"):
        EngineConfig(chat_format="nonsense")  # type: ignore[arg-type]  # refused
    async with AsyncEngine(device="simulated", chat_format="none") as other:
        with pytest.raises(InvalidRequestError, match="tools"):
            other.chat(QUESTION, tools=[WEATHER])
    async with AsyncEngine(device="simulated", chat_format="qwen3") as other:
        assert other.handler.reasons


async def test_a_prediction_changes_nothing_but_the_pace(
    engine: AsyncEngine, client: openai.AsyncOpenAI
) -> None:
    alone = await engine.chat(QUESTION, GREEDY)
    answer = await client.chat.completions.create(
        model=engine.model_name,
        messages=QUESTION,
        temperature=0,
        max_tokens=60,
        prediction={"type": "content", "content": alone.text},
    )
    assert answer.choices[0].message.content == alone.text
    assert answer.usage is not None
    details = answer.usage.completion_tokens_details
    assert details is not None
    # How many are drafted is up to what pays.
    assert (details.accepted_prediction_tokens or 0) <= answer.usage.completion_tokens
    assert details.rejected_prediction_tokens is not None


async def test_nothing_is_left_behind(engine: AsyncEngine) -> None:
    await engine.drained()
    report = await engine.report()
    assert report["held"] == report["running"] == report["waiting"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]


async def test_the_blocking_face() -> None:
    def ask() -> tuple[list[str], list[str]]:
        with Engine() as engine:
            answer = engine.chat(QUESTION, GREEDY, tools=[WEATHER])
            deltas = [
                delta
                for update in engine.stream_chat(QUESTION, GREEDY, tools=[WEATHER])
                for delta in update.tool_calls
            ]
        whole = [call.name for call in answer.tool_calls]
        return whole, [delta.name for delta in deltas if delta.name is not None]

    assert await asyncio.to_thread(ask) == (["get_weather"], ["get_weather"])

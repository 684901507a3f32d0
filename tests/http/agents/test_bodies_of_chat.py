"""Fields that clients of chat and text completions send: each is done, told of, or refused."""

from typing import Any

import httpx
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.chat.tool_schema import of_object
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.serving.server import HttpServer
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import CHATML, FakeEngine
from tests.http.test_tools import CALLS, TEMPLATE, WEATHER

CHAT = "/v1/chat/completions"
Q: list[dict[str, Any]] = [{"role": "user", "content": "hi"}]
VARIABLES = (
    "{% if reasoning_effort %}[{{ reasoning_effort }}]{% endif %}"
    "{% if verbosity %}[{{ verbosity }}]{% endif %}"
)


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE + VARIABLES), answer="ok", max_context=1024)


async def asked(http: httpx.AsyncClient, engine: FakeEngine, **fields: Any) -> tuple[str, Any]:
    """The prompt that a request makes, and its answer."""
    answer = await http.post(CHAT, json={"messages": Q, **fields})
    assert answer.status_code == 200, answer.text
    return engine.tokenizer.decode(engine.asked[-1].prompt), answer.json()


def called(arguments: str) -> list[dict[str, Any]]:
    """A conversation with an earlier call."""
    function = {"name": "get_weather", "arguments": arguments}
    call = {"id": "c", "type": "function", "function": function}
    return [
        *Q,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "rain"},
    ]


PROMPTS: list[tuple[dict[str, Any], str]] = [
    ({"reasoning": {"effort": "high"}}, "[high]"),
    ({"reasoning": {"effort": "high"}, "reasoning_effort": "high"}, "[high]"),
    ({"verbosity": "low"}, "[low]"),
    ({"enable_thinking": False}, "<think>\n\n</think>"),
    ({"thinking": {"type": "disabled"}}, "<think>\n\n</think>"),
    ({"extra_body": {}}, "user:hi;"),
    ({"messages": called('{"city": "Par')}, "[get_weather ];tool:rain;"),
    ({"messages": called(" \n")}, "[get_weather ];tool:rain;"),
    ({"messages": called("[1, 2]")}, "[get_weather ];tool:rain;"),
]


@pytest.mark.parametrize(("fields", "prompt"), PROMPTS)
async def test_what_the_model_reads(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], prompt: str
) -> None:
    if "messages" in fields:
        fields = {**fields, "tools": [WEATHER]}
    assert prompt in (await asked(http, engine, **fields))[0]


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"reasoning": {"effort": "high"}, "reasoning_effort": "low"}, "reasoning.effort"),
    ({"reasoning": {"max_tokens": 5}}, "reasoning.max_tokens"),
    ({"verbosity": "low", "chat_template_kwargs": {"verbosity": "high"}}, "verbosity"),
    ({"max_tokens": 16.5}, "max_tokens"),
    ({"extra_body": {"top_k": 5}}, "extra_body"),
    ({"response_format": {"type": "json_object", "schema": "{"}}, "response_format"),
]


@pytest.mark.parametrize(("fields", "param"), REFUSED)
async def test_what_cannot_be_done_is_refused(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(CHAT, json={"messages": Q, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
    assert not engine.asked


async def test_whole_numbers_may_be_written_as_fractions(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    fields = {"max_tokens": 16.0, "n": 1.0, "seed": 3.0, "top_k": 5.0, "temperature": 1.0}
    await asked(http, engine, **fields)
    params = engine.asked[0].params
    assert (params.max_tokens, params.seed, params.top_k) == (16, 3, 5)


@pytest.mark.parametrize("schema", [{"type": "object", "required": ["a"]}, '{"type": "object"}'])
async def test_a_json_object_with_a_schema(
    http: httpx.AsyncClient, engine: FakeEngine, schema: Any
) -> None:
    await asked(http, engine, response_format={"type": "json_object", "schema": schema})
    grammar = engine.asked[0].grammar
    assert grammar is not None
    assert '"json_schema"' in str(grammar).replace("'", '"')
    await asked(http, engine, response_format={"type": "json_object", "schema": {}})
    assert '"json_object"' in str(engine.asked[1].grammar).replace("'", '"')


async def test_the_default_of_max_tokens_is_what_is_left(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    for left, most in ((40, 16), (16, 16), (10, 10), (1, 1)):
        prompt = [5] * (engine.max_context - left)
        answer = await http.post("/v1/completions", json={"prompt": prompt})
        assert answer.status_code == 200, answer.text
        assert engine.asked[-1].params.max_tokens == most


SAID: list[tuple[str, dict[str, Any], str]] = [
    (CHAT, {"messages": Q, "tools": [{"type": "function", "name": "f"}]},
     "'tools[0].name'. Did you mean 'function.name'?"),
    (CHAT, {"prompt": "hi"}, "'prompt' is not supported: use 'messages'"),
    (CHAT, {"messages": [{"role": "user", "text": "x"}]},
     "'messages[0].text' is not supported: use 'content'"),
    ("/v1/responses", {"messages": Q}, "'messages' is not supported: use 'input'"),
    ("/v1/responses", {"input": "x", "tools": [{"type": "function", "function": {"name": "f"}}]},
     "'tools[0].function'"),
    ("/v1/responses", {"input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
     "'input' must name a tool call"),
    ("/v1/embeddings", {"prompt": "hi"}, "'prompt' is not supported: use 'input'"),
    ("/v1/messages", {"messages": Q, "max_tokens": 5, "stop": ["x"], "stop_sequences": ["y"]},
     "'stop' and 'stop_sequences' mean the same"),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body", "said"), SAID)
async def test_errors_name_what_was_sent(
    http: httpx.AsyncClient, path: str, body: dict[str, Any], said: str
) -> None:
    answer = await http.post(path, json=body)
    assert answer.status_code == 400, answer.text
    assert said in answer.json()["error"]["message"]


async def test_one_phrase_for_a_prompt_that_is_too_long(
    http: httpx.AsyncClient, engine: FakeEngine
) -> None:
    answer = await http.post("/v1/completions", json={"prompt": "x " * 100_000})
    assert answer.json()["error"]["code"] == "context_length_exceeded"
    assert "maximum context length is 1024 tokens" in answer.json()["error"]["message"]


TAKEN: list[tuple[dict[str, Any], tuple[str, Any]]] = [
    ({"random_seed": 5}, ("seed", 5)),
    ({"min_new_tokens": 3}, ("min_tokens", 3)),
    ({"typ_p": 0.5}, ("typical_p", 0.5)),
    ({"max_tokens": 9, "max_new_tokens": 9}, ("max_tokens", 9)),
    ({"max_tokens": -1}, ("max_tokens", None)),
    ({"top_p": 0}, ("temperature", 0.0)),
    ({"repeat_last_n": 64}, ("repetition_penalty", 1.0)),
    ({"repeat_last_n": 0, "frequency_penalty": 1.0}, ("frequency_penalty", 0.0)),
    ({"repeat_last_n": -1, "frequency_penalty": 1.0}, ("frequency_penalty", 1.0)),
]


@pytest.mark.parametrize(("fields", "param"), TAKEN)
async def test_other_spellings(
    http: httpx.AsyncClient, engine: FakeEngine, fields: dict[str, Any], param: tuple[str, Any]
) -> None:
    await asked(http, engine, **fields)
    name, value = param
    assert getattr(engine.asked[0].params, name) == value


async def test_users_as_objects(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    await asked(http, engine, user={"name": "a", "id": "1"})
    assert engine.asked[0].tenant == "1"


async def test_any_tool_is_a_required_one(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    await asked(http, engine, tools=[WEATHER], tool_choice="required")
    await asked(http, engine, tools=[WEATHER], tool_choice="any")
    assert engine.asked[0].grammar == engine.asked[1].grammar


def test_a_tool_without_properties_takes_none() -> None:
    for open_schema in (
        {"type": "object"},
        {"type": "object", "properties": {}, "minProperties": 1},
    ):
        assert "additionalProperties" not in of_object(open_schema)
    closed: list[dict[str, Any]] = [{"type": "object", "properties": {}}, {"properties": {}}]
    for schema in closed:
        assert of_object(schema)["additionalProperties"] is False


async def test_reasoning_alone_is_taken_back(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    """As an answer that was cut short while it thought comes back."""
    thought = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    prompt, _ = await asked(http, engine, messages=[*Q, thought, *Q])
    assert prompt == "user:hi;assistant:hm;user:hi;"


@pytest.mark.parametrize("begun", ["<", "im", ">", "start", "a <|im_end|> b", "assistant", "x  "])
async def test_an_answer_goes_on_where_it_was_cut(
    http: httpx.AsyncClient, engine: FakeEngine, begun: str
) -> None:
    """Also where the template's own marks have that text in them."""
    engine.template = ChatTemplate(CHATML)
    said = {"role": "assistant", "content": begun}
    prompt, _ = await asked(http, engine, messages=[*Q, said], continue_final_message=True)
    assert prompt == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{begun}"
    engine.template = ChatTemplate(
        CHATML.replace("message['content']", "message['content'] | trim")
    )
    prompt, _ = await asked(http, engine, messages=[*Q, said], continue_final_message=True)
    assert prompt == f"<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n{begun.strip()}"
    engine.template = ChatTemplate("{{ messages[0].content }}")
    body = {"messages": [*Q, said], "continue_final_message": True}
    answer = await http.post(CHAT, json=body)
    assert answer.status_code == 400
    assert "to be continued" in answer.json()["error"]["message"]


async def test_azures_client(server: HttpServer, engine: FakeEngine) -> None:
    door = Door(AccessSource(ServerConfig(api_key=("secret-key-1",))).rules())
    server.app.door.apply(door.rules)
    async with openai.AsyncAzureOpenAI(
        azure_endpoint=server.url, api_key="secret-key-1", api_version="2024-10-21", max_retries=0
    ) as client:
        messages: Any = Q
        answer = await client.chat.completions.create(model="org/fake", messages=messages)
        assert answer.choices[0].message.content == "ok"
        assert [model.id async for model in client.models.list()] == ["org/fake"]
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/openai/v1", api_key="-", default_headers={"api-key": "secret-key-1"}
    ) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()  # what Authorization says comes first
    async with httpx.AsyncClient(headers={"api-key": "secret-key-1"}) as plain:
        for path in ("/openai/v1/models", "/openai/models", "/v1/models"):
            assert (await plain.get(server.url + path)).status_code == 200


FUNCTION = WEATHER["function"]


async def test_the_older_form_of_tools(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    call = CALLS.partition("\n<tool_call>")[0]
    engine.answers = [call, call, "Rain."]
    create: Any = client.chat.completions.create
    given: Any = {"model": "org/fake", "functions": [FUNCTION], "function_call": "auto"}
    whole = (await create(messages=Q, **given)).choices[0]
    assert whole.finish_reason == "function_call"
    assert whole.message.tool_calls is None
    assert whole.message.function_call.name == "get_weather"
    streamed, reasons = {"name": "", "arguments": ""}, set()
    async for chunk in await create(messages=Q, stream=True, **given):
        reasons.add(chunk.choices[0].finish_reason)
        if (delta := chunk.choices[0].delta.function_call) is not None:
            streamed["name"] += delta.name or ""
            streamed["arguments"] += delta.arguments
    assert streamed == whole.message.function_call.model_dump()
    assert reasons == {None, "function_call"}
    history = [
        *Q, whole.message.model_dump(exclude_none=True),
        {"role": "function", "name": "get_weather", "content": "rain"},
    ]  # fmt: skip
    named = {**given, "function_call": {"name": "get_weather"}}
    assert (await create(messages=history, **named)).choices[0].message.content == "Rain."
    prompt = engine.tokenizer.decode(engine.asked[2].prompt)
    assert "assistant:[get_weather Paris];tool:rain;" in prompt
    grammars = [asked.grammar for asked in engine.asked]
    assert grammars[2] != grammars[0]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"functions": [FUNCTION], "tools": [WEATHER]}, "functions"),
        ({"function_call": {"name": "f"}}, "function_call"),
        ({"messages": [*Q, {"role": "function", "name": "f", "content": "x"}]},
         "messages[1].tool_call_id"),
    ],
)  # fmt: skip
async def test_the_older_form_of_tools_where_it_is_wrong(
    http: httpx.AsyncClient, fields: dict[str, Any], param: str
) -> None:
    answer = await http.post(CHAT, json={"messages": Q, **fields})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text

"""Chat completions over real HTTP."""

import asyncio
import json
from typing import Any

import httpx
import openai
import pytest

from pyengine.chat.template import ChatTemplate
from pyengine.errors import ContextLengthError
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import ANSWER, CHATML, FakeEngine

HELLO: list[Any] = [{"role": "user", "content": "hello"}]
MODEL = "org/fake"


async def test_whole_answer(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO)
    assert answer.choices[0].message.content == ANSWER
    assert answer.choices[0].message.role == "assistant"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.id.startswith("chatcmpl-")
    assert answer.usage is not None
    prompt = engine.asked[0].prompt
    assert (
        engine.tokenizer.decode(prompt)
        == "<|im_start|>user\nhello<|im_end|>\n<|im_start|>assistant\n"
    )
    assert prompt[0] == 0
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(ANSWER)
    assert answer.usage.total_tokens == len(prompt) + len(ANSWER)
    assert answer.usage.prompt_tokens_details is not None
    assert answer.usage.prompt_tokens_details.cached_tokens == len(prompt) // 2


async def test_the_synchronous_client(server: HttpServer) -> None:
    def ask() -> tuple[str | None, str]:
        with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
            whole = client.chat.completions.create(model=MODEL, messages=HELLO)
            chunks = client.chat.completions.create(model=MODEL, messages=HELLO, stream=True)
            text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
            return whole.choices[0].message.content, text

    assert await asyncio.to_thread(ask) == (ANSWER, ANSWER)


@pytest.mark.parametrize("usage", [None, False, True])
async def test_stream(http: httpx.AsyncClient, usage: bool | None) -> None:
    body: dict[str, Any] = {"model": MODEL, "messages": HELLO, "stream": True}
    if usage is not None:
        body["stream_options"] = {"include_usage": usage}
    answer = await http.post("/v1/chat/completions", json=body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    events = answer.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    chunks = [json.loads(event.removeprefix("data: ")) for event in events[:-2]]
    assert len({(chunk["id"], chunk["created"], chunk["model"]) for chunk in chunks}) == 1
    assert all(chunk["object"] == "chat.completion.chunk" for chunk in chunks)
    if usage:
        last = chunks.pop()
        assert last["choices"] == []
        assert last["usage"]["completion_tokens"] == len(ANSWER)
        assert all(chunk["usage"] is None for chunk in chunks)
    else:
        assert all("usage" not in chunk for chunk in chunks)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert deltas[0] == {"role": "assistant", "content": "", "refusal": None}
    assert deltas[-1] == {}
    assert "".join(delta.get("content", "") for delta in deltas) == ANSWER
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None] * (len(chunks) - 1) + ["stop"]


async def test_parameters_reach_the_engine(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    fields = {
        "temperature": 0.5,
        "top_k": 7,
        "top_p": 0.9,
        "min_p": 0.1,
        "typical_p": 0.8,
        "top_n_sigma": -1,
        "dynatemp_range": 0.5,
        "dynatemp_exponent": 2,
        "xtc_probability": 0.25,
        "xtc_threshold": 0.2,
        "dry_multiplier": 0.5,
        "dry_base": 2,
        "dry_allowed_length": 3,
        "dry_penalty_last_n": 64,
        "dry_sequence_breakers": ["x", "\n"],
        "allowed_token_ids": [5, 4],
        "presence_penalty": 0.25,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.5,
        "logit_bias": {"5": 3, "7": -100},
        "bad_words": ["x", "y z"],
        "seed": -3,
        "max_completion_tokens": 5,
        "min_tokens": 2,
        "stop": ["x", "yy"],
        "stop_token_ids": [3],
        "ignore_eos": True,
        "include_stop_str_in_output": True,
        "skip_special_tokens": False,
        "priority": -1,
        "cache_salt": "mine",
        "user": "somebody",
    }
    answer = await http.post(
        "/v1/chat/completions", json={"model": MODEL, "messages": HELLO, **fields}
    )
    assert answer.status_code == 200, answer.text
    assert answer.json()["choices"][0]["finish_reason"] == "length"
    asked = engine.asked[0]
    assert (asked.priority, asked.cache_salt, asked.tenant) == (-1, "mine", "somebody")
    params = asked.params
    assert (params.temperature, params.top_k, params.top_p, params.min_p) == (0.5, 7, 0.9, 0.1)
    assert (params.typical_p, params.top_n_sigma) == (0.8, 0.0)
    assert (params.dynatemp_range, params.dynatemp_exponent) == (0.5, 2.0)
    assert (params.xtc_probability, params.xtc_threshold) == (0.25, 0.2)
    assert (params.dry_multiplier, params.dry_base, params.dry_allowed_length) == (0.5, 2.0, 3)
    assert (params.dry_penalty_last_n, params.dry_sequence_breakers) == (64, ("x", "\n"))
    assert params.allowed_token_ids == (5, 4)
    penalties = (params.presence_penalty, params.frequency_penalty, params.repetition_penalty)
    assert penalties == (0.25, -0.5, 1.5)
    assert (params.logit_bias, params.bad_words) == ({5: 3.0, 7: -100.0}, ("x", "y z"))
    assert (params.seed, params.max_tokens, params.min_tokens) == (-3, 5, 2)
    assert (params.stop, params.stop_token_ids) == (("x", "yy"), (3,))
    assert (params.ignore_eos, params.include_stop, params.skip_special_tokens) == (
        True,
        True,
        False,
    )


async def test_one_stop_string(client: openai.AsyncOpenAI) -> None:
    answer = await client.chat.completions.create(model=MODEL, messages=HELLO, stop=" 👋")
    assert answer.choices[0].message.content == "Grüße"
    assert answer.choices[0].finish_reason == "stop"


async def test_content_parts_and_roles(client: openai.AsyncOpenAI, engine: FakeEngine) -> None:
    messages: list[Any] = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "assistant", "content": "c", "refusal": None, "tool_calls": None, "audio": None},
        {"role": "user", "content": ""},
    ]
    await client.chat.completions.create(model=MODEL, messages=messages)
    assert engine.tokenizer.decode(engine.asked[0].prompt) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\na\nb<|im_end|>\n"
        "<|im_start|>assistant\nc<|im_end|>\n<|im_start|>user\n<|im_end|>\n<|im_start|>assistant\n"
    )


TOOLS = (
    "{% for m in messages %}{{ m.role }}:{{ m.content or '' }}"
    "{% for call in m.tool_calls %}[{{ call.function.name }} {{ call.function.arguments.x }}]"
    "{% endfor %};{% endfor %}"
)


def _tool_conversation(answers: str = "1", arguments: str = '{"x": 5}') -> list[Any]:
    function = {"name": "add", "arguments": arguments}
    return [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "tool_calls": [{"id": "1", "type": "function", "function": function}],
        },
        {"role": "tool", "tool_call_id": answers, "content": "7"},
    ]


async def test_tool_calls_of_earlier_answers(
    client: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.template = ChatTemplate(TOOLS)
    await client.chat.completions.create(model=MODEL, messages=_tool_conversation())
    assert engine.tokenizer.decode(engine.asked[0].prompt) == "user:q;assistant:[add 5];tool:7;"


@pytest.mark.parametrize(
    ("template", "messages", "param"),
    [
        (CHATML, _tool_conversation(), "messages[1].tool_calls"),
        (TOOLS, _tool_conversation(answers="2"), "messages[2].tool_call_id"),
        (CHATML, [{**HELLO[0], "tool_call_id": "1"}], "messages[0].tool_call_id"),
        (CHATML, [{"role": "user", "content": None}], "messages[0].content"),
        (CHATML, [{"role": "user"}], "messages[0].content"),
        (CHATML, [{"role": "robot", "content": "x"}], "messages[0].role"),
        (
            CHATML,
            [{"role": "user", "content": [{"type": "image_url"}]}],
            "messages[0].content[0].type",
        ),
        (CHATML, [{"role": "user", "content": [{"type": "text"}]}], "messages[0].content[0].text"),
        (
            CHATML,
            [*HELLO, {"role": "assistant", "content": "x", "refusal": "y"}],
            "messages[1].refusal",
        ),
        (CHATML, [], "messages"),
        ("{{ raise_exception('no') }}", HELLO, "messages"),
        (None, HELLO, "messages"),
    ],
)
async def test_messages_that_are_refused(
    http: httpx.AsyncClient, engine: FakeEngine, template: str | None, messages: Any, param: str
) -> None:
    engine.template = None if template is None else ChatTemplate(template)
    answer = await http.post("/v1/chat/completions", json={"model": MODEL, "messages": messages})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param
    assert not engine.asked


async def test_a_prompt_over_the_context(http: httpx.AsyncClient, engine: FakeEngine) -> None:
    for length in (600, 3_000_000):
        messages = [{"role": "user", "content": "?" * length}]
        answer = await http.post(
            "/v1/chat/completions", json={"model": MODEL, "messages": messages}
        )
        error = answer.json()["error"]
        assert (answer.status_code, error["code"]) == (400, "context_length_exceeded")
        assert error["param"] == "messages"
        assert "512" in error["message"]
        assert any(
            word.strip(".").isdecimal() and int(word.strip(".")) > 512
            for word in error["message"].split()
        )


@pytest.mark.parametrize("name", ["max_tokens", "max_completion_tokens"])
async def test_more_tokens_than_the_context(
    http: httpx.AsyncClient, engine: FakeEngine, name: str
) -> None:
    engine.refuse = ContextLengthError("too many", param="max_tokens")
    body = {"model": MODEL, "messages": HELLO, name: 5000}
    error = (await http.post("/v1/chat/completions", json=body)).json()["error"]
    assert (error["param"], error["code"]) == (name, "context_length_exceeded")

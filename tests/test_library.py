"""The engines as OpenAI's client spells them: the endpoint's answers, in the process."""

import asyncio
from typing import Any

import httpx
import pytest

from pyengine import AsyncEngine, Engine, InvalidRequestError, RequestAbortedError
from pyengine.errors import ModelNotFoundError
from pyengine.http.openai.schema.chat import ChatResponse
from pyengine.http.openai.schema.response_object import OutputMessage, ResponseObject
from pyengine.http.serving.server import HttpServer
from pyengine.library.answers import ChatChunk, ResponseEvent, TextChunk

HELLO: list[dict[str, Any]] = [{"role": "user", "content": "What is the capital of France?"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}


async def test_answers_are_the_endpoints() -> None:
    """What comes over HTTP and what comes in the process differ in ids and times only."""
    calls: list[tuple[str, dict[str, Any]]] = [
        ("chat.completions", {"messages": HELLO, "logprobs": True, "top_logprobs": 2, "n": 2}),
        ("completions", {"prompt": ["Once", "Twice"], "echo": True}),
        ("responses", {"input": "Hello"}),
    ]
    async with AsyncEngine(prefix_cache=False, speculation=()) as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
            for name, fields in calls:
                fields = {**fields, "temperature": 0}
                endpoint: Any = engine
                for part in name.split("."):
                    endpoint = getattr(endpoint, part)
                path = f"/v1/{name.replace('.', '/')}"
                over = (await http.post(path, json=fields)).json()
                inside = await endpoint.create(**fields)
                assert _plain(inside) == _plain(over), name
        await server.stop(0)


def _plain(answer: Any) -> Any:
    import msgspec

    if not isinstance(answer, dict):
        answer = msgspec.json.decode(msgspec.json.encode(answer))
    return _without_ids(answer)


def _without_ids(value: Any) -> Any:
    volatile = {"id", "created", "created_at", "completed_at"}
    if isinstance(value, dict):
        return {key: _without_ids(each) for key, each in value.items() if key not in volatile}
    return [_without_ids(each) for each in value] if isinstance(value, list) else value


async def test_streams() -> None:
    async with AsyncEngine() as engine:
        whole: Any = await engine.chat.completions.create(messages=HELLO, **GREEDY)
        assert isinstance(whole, ChatResponse)
        assert not whole.choices[0].message.tool_calls
        stream: Any = await engine.chat.completions.create(
            messages=HELLO, stream=True, stream_options={"include_usage": True}, **GREEDY
        )
        chunks = [chunk async for chunk in stream]
        assert all(isinstance(chunk, ChatChunk) for chunk in chunks)
        text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        assert text == whole.choices[0].message.content
        assert chunks[0].choices[0].delta.role == "assistant"
        assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
        texts: Any = await engine.completions.create(prompt="Once", stream=True, **GREEDY)
        assert {type(chunk) async for chunk in texts} == {TextChunk}
        response: Any = await engine.responses.create(input=HELLO, temperature=0)
        assert isinstance(response, ResponseObject)
        assert isinstance(response.output[-1], OutputMessage)
        assert response.output_text == response.output[-1].content[0].text
        assert response.usage
        assert response.usage.output_tokens > 0
        stream = await engine.responses.create(input=HELLO, stream=True, temperature=0)
        events: list[Any] = [event async for event in stream]
        assert all(isinstance(event, ResponseEvent) for event in events)
        assert "".join(e.delta or "" for e in events) == response.output_text
        assert events[-1].type == "response.completed"
        assert events[-1].response.output_text == response.output_text
        # The method of that name is as it was, and an answer's message goes back as it is.
        assert (await engine.chat(HELLO)).text
        more = [*HELLO, whole.choices[0].message, {"role": "user", "content": "And Italy?"}]
        assert await engine.chat.completions.create(messages=more, **GREEDY)


async def test_errors_are_raised_as_they_are() -> None:
    engine = AsyncEngine()
    with pytest.raises(Exception, match="being loaded"):
        await engine.chat.completions.create(messages=HELLO)
    async with engine:
        create = engine.chat.completions.create
        for stream in (False, True):
            with pytest.raises(InvalidRequestError, match="Did you mean 'temperature'") as raised:
                await create(messages=HELLO, temprature=1, stream=stream)
            assert raised.value.param == "temprature"
            with pytest.raises(ModelNotFoundError):
                await create(messages=HELLO, model="gpt-4", stream=stream)
        told: Any = await create(messages=HELLO, extra_body={"metadata": {"a": "b"}}, **GREEDY)
        assert "metadata" in told.warnings[0]


async def test_stream_that_is_left_is_aborted() -> None:
    async with AsyncEngine() as engine:
        create, endless = engine.completions.create, {"ignore_eos": True, "max_tokens": 1500}
        stream: Any = await create(prompt="Once", stream=True, **endless)
        async with stream:
            await anext(stream)
        with pytest.raises(RequestAbortedError):
            [chunk async for chunk in stream]
        dropped: Any = await create(prompt="Once", stream=True, **endless)
        del dropped
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(create(prompt="Once", **endless), 0.05)
        await engine.drained()
        report = await engine.report()
        assert report["held"] == report["running"] == 0
        assert report["finished_abort"] == 3


def test_without_a_loop() -> None:
    with Engine() as engine:
        whole: Any = engine.chat.completions.create(messages=HELLO, **GREEDY)
        stream: Any = engine.chat.completions.create(messages=HELLO, stream=True, **GREEDY)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in stream)
        assert text == whole.choices[0].message.content == engine.chat(HELLO).text
        with engine.completions.create(prompt="Once", stream=True, max_tokens=900) as cut:
            assert next(cut)
        vectors: Any = engine.embeddings.create(input=["Once", "upon"], dimensions=8)
        assert [len(each.embedding) for each in vectors.data] == [8, 8]

"""The endpoint with the real engine behind it: what a client drops leaves nothing behind."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from pyengine import AsyncEngine
from pyengine.chat.answer import ChatUpdate
from pyengine.chat.generation import ChatGeneration
from pyengine.http.serving.server import HttpServer

CHAT = "/v1/chat/completions"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STREAMS = 200


@pytest.fixture(params=["simulated", "cpu"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(device=request.param, mode="server", simulated_step_ms=1.0)
    yield engine
    await engine.close()


@pytest.fixture
async def server(engine: AsyncEngine) -> AsyncIterator[HttpServer]:
    """Listening, the model not loaded yet: the common fixture waits for it."""
    server = HttpServer(engine, port=0)
    await server.start()
    yield server
    await server.stop(0)


async def _all_is_free(engine: AsyncEngine, server: HttpServer) -> None:
    await server.app.running.idle.wait()
    await engine.drained()
    report = await engine.report()
    assert report["held"] == report["running"] == report["waiting"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]


@pytest.mark.parametrize("stream", [False, True])
async def test_allowed_tokens_that_no_grammar_takes_are_refused(
    engine: AsyncEngine, server: HttpServer, stream: bool
) -> None:
    await engine.start()
    body = {
        "model": engine.model_name,
        "prompt": "x",
        "structured_outputs": {"regex": "b+"},
        "allowed_token_ids": [5],
        "stream": stream,
    }
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        refused = await http.post("/v1/completions", json=body)
    assert refused.status_code == 400
    assert "'allowed_token_ids' has no token that the grammar takes" in refused.text
    await _all_is_free(engine, server)


async def test_a_port_before_a_model(engine: AsyncEngine, server: HttpServer) -> None:
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        assert (await http.get("/health")).status_code == 200
        assert (await http.get("/ready")).status_code == 503
        await engine.start()
        assert (await http.get("/ready")).status_code == 200
        body = {"model": engine.model_name, "messages": QUESTION, "max_tokens": 8}
        whole = (await http.post("/v1/chat/completions", json=body)).json()
        assert whole["usage"]["completion_tokens"] <= 8
        again = (await http.post("/v1/chat/completions", json=body)).json()
        assert again["usage"]["prompt_tokens_details"]["cached_tokens"] > 0
        for length in (10_000, 1_000_000):
            long = {**body, "messages": [{"role": "user", "content": "?! " * length}]}
            error = (await http.post("/v1/chat/completions", json=long)).json()["error"]
            assert error["code"] == "context_length_exceeded"
    await _all_is_free(engine, server)


async def test_two_hundred_streams_half_of_them_dropped(
    engine: AsyncEngine, server: HttpServer
) -> None:
    await engine.start()
    host, port = server.url.removeprefix("http://").split(":")
    body = json.dumps(
        {
            "model": engine.model_name,
            "messages": QUESTION,
            "max_tokens": 48,
            "ignore_eos": True,
            "stream": True,
        }
    ).encode()
    head = (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n"
    )

    async def ask(number: int) -> bytes:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(head % len(body) + body)
        if number % 2:
            await reader.readuntil(b'"content":"')
            writer.transport.abort()
            return b""
        answer = await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()
        return answer

    answers = await asyncio.gather(*(ask(number) for number in range(STREAMS)))
    assert sum(b'"finish_reason":"length"' in answer for answer in answers) == STREAMS // 2
    await _all_is_free(engine, server)


@pytest.mark.parametrize("engine", ["simulated"], indirect=True)
async def test_an_answer_that_is_parsed_is_written_without_waking_its_task(
    engine: AsyncEngine, server: HttpServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    await engine.start()
    woken = 0
    read = ChatGeneration.__anext__

    async def count(answer: ChatGeneration) -> ChatUpdate:
        nonlocal woken
        woken += 1
        return await read(answer)

    monkeypatch.setattr(ChatGeneration, "__anext__", count)
    tool = {"type": "function", "function": {"name": "look_up"}}
    body = {"messages": QUESTION, "tools": [tool], "max_tokens": 200}
    body |= {"temperature": 0, "ignore_eos": True}
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        whole = (await http.post(CHAT, json=body)).json()["choices"][0]
        woken = 0
        streamed = (await http.post(CHAT, json=body | {"stream": True})).text.split("\n\n")
    choices = [json.loads(event[6:])["choices"][0] for event in streamed[:-2]]
    text = "".join(choice["delta"].get("content") or "" for choice in choices)
    assert text == whole["message"]["content"]
    assert choices[-1]["finish_reason"] == whole["finish_reason"]
    assert len(choices) > 10 * woken
    assert woken <= 3  # for the first text, the last, and the end
    await _all_is_free(engine, server)

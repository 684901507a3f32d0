"""The endpoint with the real engine behind it: what a client drops leaves nothing behind."""

import asyncio
import json
from collections.abc import AsyncIterator

import httpx
import pytest

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer

QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
STREAMS = 200


@pytest.fixture(params=["simulated", "cpu"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(device=request.param, mode="server", simulated_step_ms=1.0)
    yield engine
    await engine.close()


@pytest.fixture
async def server(engine: AsyncEngine) -> AsyncIterator[HttpServer]:
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

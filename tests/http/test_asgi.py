"""The endpoint mounted in a FastAPI service, under uvicorn."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import fastapi
import httpx
import openai
import pytest
import uvicorn

import pyengine
from tests.http.fake_engine import ANSWER, FakeEngine


@asynccontextmanager
async def serving(app: object) -> AsyncIterator[str]:
    """The URL of an application under uvicorn, on this loop."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", lifespan="on", ws="none")  # type: ignore[arg-type]
    server = uvicorn.Server(config)
    started = asyncio.Event()
    startup = server.startup

    async def start(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        started.set()

    server.startup = start  # type: ignore[method-assign]
    task = asyncio.create_task(server._serve([listener]))
    waiting = asyncio.create_task(started.wait())
    await asyncio.wait({task, waiting}, return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await task


@pytest.fixture
async def service(engine: FakeEngine) -> AsyncIterator[str]:
    @asynccontextmanager
    async def lifespan(_: fastapi.FastAPI) -> AsyncIterator[None]:
        await engine.start()
        yield
        await engine.close()

    app = fastapi.FastAPI(lifespan=lifespan)
    app.mount("/llm", pyengine.asgi_app(engine))

    @app.get("/own")
    async def own() -> str:
        return "own"

    async with serving(app) as url:
        yield url


@pytest.fixture
async def mounted(service: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{service}/llm/v1", api_key="none", max_retries=0
    ) as client:
        yield client


ASK: Any = [{"role": "user", "content": "hello"}]


async def test_answers_whole_and_streamed(mounted: openai.AsyncOpenAI, service: str) -> None:
    whole = await mounted.chat.completions.create(model="org/fake", messages=ASK)
    assert whole.choices[0].message.content == ANSWER
    stream: Any = await mounted.chat.completions.create(model="org/fake", messages=ASK, stream=True)
    parts = [chunk.choices[0].delta.content or "" async for chunk in stream]
    assert "".join(parts) == ANSWER
    assert len(parts) > 3
    assert [model.id async for model in mounted.models.list()] == ["org/fake"]
    async with httpx.AsyncClient(base_url=service) as http:
        assert (await http.get("/own")).json() == "own"
        assert (await http.get("/llm/health")).json() == {"status": "ok"}
        assert "<!doctype html>" in (await http.get("/llm/")).text
        head = await http.head("/llm/health")
        assert (head.status_code, head.content) == (200, b"")


async def test_errors_are_those_of_the_endpoint(mounted: openai.AsyncOpenAI, service: str) -> None:
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        await mounted.chat.completions.create(model="other", messages=ASK)
    with pytest.raises(openai.BadRequestError, match="temperature"):
        await mounted.chat.completions.create(model="org/fake", messages=ASK, temperature=9)
    async with httpx.AsyncClient(base_url=service) as http:
        missing = await http.get("/llm/nothing")
        assert missing.json()["error"]["code"] == "unknown_url"
        refused = await http.get("/llm/v1/completions")
        assert (refused.status_code, refused.headers["allow"]) == (405, "POST")
        large = await http.post("/llm/v1/completions", content=b" " * (5 << 20))
        assert large.status_code in (413, 415)


async def test_a_failure_in_a_stream_is_an_event_of_it(
    mounted: openai.AsyncOpenAI, engine: FakeEngine
) -> None:
    engine.fail_after = (3, pyengine.EngineDeadError("it died"))
    stream: Any = await mounted.chat.completions.create(model="org/fake", messages=ASK, stream=True)
    with pytest.raises(openai.APIError, match="it died"):
        async for _ in stream:
            pass


@pytest.mark.parametrize("stream", [True, False])
async def test_a_client_that_leaves_aborts(service: str, engine: FakeEngine, stream: bool) -> None:
    engine.hold_after = 2
    async with httpx.AsyncClient(base_url=service) as http:
        body = {"model": "org/fake", "messages": ASK, "stream": stream}
        asked = asyncio.create_task(http.post("/llm/v1/chat/completions", json=body))
        await engine.until(lambda: bool(engine.running))
        asked.cancel()
        await asyncio.gather(asked, return_exceptions=True)
    await engine.until(lambda: not engine.running)
    assert engine.aborted


async def test_served_by_itself_it_starts_and_closes_the_engine() -> None:
    engine = FakeEngine()
    async with serving(pyengine.asgi_app(engine)) as url, httpx.AsyncClient(base_url=url) as http:
        assert engine.ready
        assert (await http.get("/ready")).status_code == 200
    assert engine.closed

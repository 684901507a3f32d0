"""A server in the test's own loop, on a free port; behind it a made-up engine, or a file's own."""

from collections.abc import AsyncIterator

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine


@pytest.fixture
def engine() -> FakeEngine:
    return FakeEngine()


@pytest.fixture
def limits() -> Limits:
    return Limits()


@pytest.fixture
async def server(engine: FakeEngine | AsyncEngine, limits: Limits) -> AsyncIterator[HttpServer]:
    await engine.start()
    server = HttpServer(engine, port=0, limits=limits)
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"content-type": "application/json"}  # of bodies that httpx does not encode
    async with httpx.AsyncClient(base_url=server.url, timeout=20, headers=headers) as client:
        yield client


@pytest.fixture
async def client(server: HttpServer) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0
    ) as client:
        yield client

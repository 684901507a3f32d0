"""A server in the test's own loop, on a free port; behind it a made-up engine, or a file's own."""

from collections.abc import AsyncIterator, Iterator
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.http.specification import Bodies, Checked


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
def bodies() -> Iterator[Bodies]:
    """What ``http`` and ``client`` are sent; when the test is over, all of it is validated."""
    bodies = Bodies()
    yield bodies
    bodies.check()


@pytest.fixture
async def http(server: HttpServer, bodies: Bodies) -> AsyncIterator[httpx.AsyncClient]:
    headers = {"content-type": "application/json"}  # of bodies that httpx does not encode
    async with httpx.AsyncClient(
        base_url=server.url, timeout=20, headers=headers, transport=Checked(bodies)
    ) as client:
        yield client


@pytest.fixture
async def client(server: HttpServer, bodies: Bodies) -> AsyncIterator[openai.AsyncOpenAI]:
    http: Any = httpx.AsyncClient(transport=Checked(bodies), timeout=20)  # httpx's or httpx2's
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", max_retries=0, http_client=http
    ) as client:
        yield client

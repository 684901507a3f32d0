"""A refusal that comes before the body was read leaves the connection usable, or says its end."""

import asyncio
from collections.abc import AsyncIterator

import httpx
import pytest

from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.limits import Limits
from pyengine.http.serving.server import HttpServer
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import FakeEngine

TRIES = 20
KEY = {"authorization": "Bearer secret-key-1"}
JSON = {"content-type": "application/json"}
# What is refused, and by which status.
REFUSALS: list[tuple[str, str, dict[str, str], int]] = [
    ("POST", "/v1/nothing", KEY | JSON, 404),
    ("POST", "/v1/models", KEY | JSON, 405),
    (
        "POST",
        "/v1/chat/completions",
        KEY | {"content-type": "text/plain", "sec-fetch-site": "none"},
        415,
    ),
    ("POST", "/v1/chat/completions", KEY | JSON | {"content-encoding": "gzip"}, 415),
    ("POST", "/v1/chat/completions", JSON, 401),
    ("POST", "/v1/chat/completions", KEY | JSON | {"origin": "http://evil.example"}, 403),
    ("POST", "/v1/chat/completions", KEY | JSON | {"host": "evil.example"}, 403),
    ("PUT", "/v1/files", KEY | JSON, 405),
]


@pytest.fixture
def limits() -> Limits:
    return Limits(discard_bytes=2_000_000)


@pytest.fixture
async def http(engine: FakeEngine, limits: Limits) -> AsyncIterator[httpx.AsyncClient]:
    await engine.start()
    door = Door(AccessSource(ServerConfig(api_key=("secret-key-1",))).rules())
    server = HttpServer(engine, port=0, limits=limits, door=door)
    await server.start()
    async with httpx.AsyncClient(base_url=server.url, timeout=20) as client:
        yield client
    await server.stop(0)


@pytest.mark.parametrize(("method", "path", "headers", "status"), REFUSALS)
@pytest.mark.parametrize("size", [100_000, 1_000_000])
async def test_the_next_request_of_a_connection_is_answered(
    http: httpx.AsyncClient,
    method: str,
    path: str,
    headers: dict[str, str],
    status: int,
    size: int,
) -> None:
    for _ in range(TRIES):
        answer = await http.request(method, path, headers=headers, content=b" " * size)
        assert answer.status_code == status, answer.text
        assert "connection" not in answer.headers
        assert (await http.get("/v1/models", headers=KEY)).status_code == 200


async def test_a_longer_body_closes_the_connection(http: httpx.AsyncClient) -> None:
    """What announces more than is thrown away is not read at all."""
    url = httpx.URL(str(http.base_url))
    reader, writer = await asyncio.open_connection(url.host, url.port)
    head = f"POST /v1/nothing HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: 3000000\r\n\r\n"
    writer.write(head.encode())
    answer = await asyncio.wait_for(reader.read(), 30)  # to the connection's end
    writer.close()
    status, _, rest = answer.partition(b"\r\n")
    assert status == b"HTTP/1.1 404 Not Found"
    assert b"\r\nconnection: close\r\n" in rest.lower()

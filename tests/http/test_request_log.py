"""A line for every request: its id, key, tokens and times, and no prompt."""

import json
import signal
import threading
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest

from pyengine.errors import EngineDeadError
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.operations import request_log
from pyengine.http.operations.request_log import RequestLog
from pyengine.http.serving.server import HttpServer
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine
from tests.programs import served

CHAT = "/v1/chat/completions"
KEY = "sk-alice-1"
BODY: dict[str, Any] = {
    "model": "org/fake",
    "messages": [{"role": "user", "content": "a\nsecret"}],
}


@pytest.fixture
def settings() -> dict[str, Any]:
    return {"form": "json"}


@pytest.fixture
def written() -> list[bytes]:
    return []


@pytest.fixture
async def server(
    engine: FakeEngine, settings: dict[str, Any], written: list[bytes]
) -> AsyncIterator[HttpServer]:
    await engine.start()
    door = Door(AccessSource(ServerConfig(api_key=(KEY,))).rules())
    log = RequestLog(**settings, write=written.append)
    server = HttpServer(engine, port=0, door=door, request_log=log)
    await server.start()
    yield server
    await server.stop(0)


async def lines(server: HttpServer, written: list[bytes]) -> list[str]:
    """All lines so far."""
    await server.app.running.idle.wait()
    assert server.app.request_log is not None
    await server.app.request_log.close()
    return b"".join(written).decode().splitlines()


async def post(server: HttpServer, key: str = KEY, **fields: Any) -> httpx.Response:
    headers = {"authorization": f"Bearer {key}", "x-request-id": "mine"}
    async with httpx.AsyncClient(base_url=server.url) as http:
        return await http.post(CHAT, json={**BODY, **fields}, headers=headers)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_request_has_one_line(
    server: HttpServer, written: list[bytes], stream: bool
) -> None:
    await post(server, stream=stream)
    (text,) = await lines(server, written)
    line = json.loads(text)
    assert line["time"].endswith("Z")
    assert (line["level"], line["event"], line["id"]) == ("info", "request", "mine")
    assert (line["method"], line["path"], line["status"]) == ("POST", CHAT, 200)
    assert (line["key"], line["model"], line["finish"]) == ("api-key", "org/fake", "stop")
    assert line["tokens_in"] > 0
    assert line["tokens_out"] == len(ANSWER)
    assert line["duration_ms"] > 0
    assert "secret" not in text
    assert KEY not in text


@pytest.mark.parametrize("settings", [{"form": "json", "prompts": True}])
async def test_prompts_where_they_are_wanted(server: HttpServer, written: list[bytes]) -> None:
    await post(server)
    (text,) = await lines(server, written)
    assert json.loads(text)["request"] == BODY


async def test_errors_are_logged_with_their_code(
    server: HttpServer, engine: FakeEngine, written: list[bytes]
) -> None:
    await post(server, temperature=-1)
    await post(server, key="sk-wrong-key")
    engine.refuse = EngineDeadError("the engine failed: the reason")
    await post(server)
    bad, wrong, dead = map(json.loads, await lines(server, written))
    assert (bad["status"], bad["level"], bad["error"]) == (400, "info", "invalid_request_error")
    assert (wrong["status"], wrong["error"], wrong.get("key")) == (401, "invalid_api_key", None)
    assert (dead["status"], dead["level"]) == (500, "error")
    assert dead["error"] == "engine_dead: the engine failed: the reason"


async def test_a_stream_that_fails_is_logged_with_its_cause(
    server: HttpServer, engine: FakeEngine, written: list[bytes]
) -> None:
    engine.fail_after = (3, EngineDeadError("the reason"))
    await post(server, stream=True)
    (line,) = map(json.loads, await lines(server, written))
    assert (line["status"], line["error"]) == (200, "engine_dead: the reason")
    assert line["level"] == "error"


@pytest.mark.parametrize("settings", [{"form": "text"}])
async def test_text(server: HttpServer, written: list[bytes]) -> None:
    await post(server)
    (line,) = await lines(server, written)
    assert f" info: request POST {CHAT} 200 id=mine duration_ms=" in line
    assert " key=api-key model=org/fake tokens_in=" in line


@pytest.mark.parametrize("settings", [{"form": "text"}])
async def test_a_path_forges_no_line(server: HttpServer, written: list[bytes]) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        await http.get("/%0a2026-01-01T00:00:00Z%20error:%20forged")
        await http.get("/" + "a" * 5000)
    forged, long = await lines(server, written)
    assert ' info: request GET "/\\n2026-01-01T00:00:00Z error: forged" 404 ' in forged
    assert len(long) < 400


async def test_first_of_probes_that_fail_alike_is_logged(
    server: HttpServer, written: list[bytes]
) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        for draining in (False, True, True, True, False, True):
            server.app.draining = draining
            assert (await http.get("/ready")).status_code == (503 if draining else 200)
    found = [json.loads(line) for line in await lines(server, written)]
    assert [(line["path"], line["status"], line["level"]) for line in found] == [
        ("/ready", 503, "error")
    ] * 2


@pytest.mark.parametrize(
    ("settings", "logged"),
    [({"level": "warning"}, 0), ({"level": "info"}, 1), ({"level": "debug"}, 2)],
)
async def test_levels(server: HttpServer, written: list[bytes], logged: int) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        await http.get("/health")
        await http.get("/nothing")
    assert len(await lines(server, written)) == logged


async def test_a_reader_that_hangs_loses_lines_and_says_how_many(
    server: HttpServer, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(request_log, "MAX_WAITING", 3)
    monkeypatch.setattr(request_log, "FLUSH_S", 0.001)
    hung, go_on = threading.Event(), threading.Event()

    def write(data: bytes) -> None:
        hung.set()
        assert go_on.wait(20)
        written.append(data)

    assert server.app.request_log is not None
    server.app.request_log._write = write
    await post(server)
    while not hung.is_set():
        await post(server)
    for _ in range(9):
        await post(server)
    go_on.set()
    assert "lines of requests were dropped" in "".join(await lines(server, written))


@pytest.mark.slow
@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_server_logs_lines_of_json(workers: str) -> None:
    arguments = ("--port", "0", "--log-format", "json", "--workers", workers)
    with served(*arguments, "--device", "simulated", "--api-key", KEY) as server:
        url = server.url()
        headers = {"authorization": f"Bearer {KEY}"}
        body = {"model": "pyengine-demo", "prompt": "Hi", "max_tokens": 3}
        httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=30)
        text = server.expect(r'"path":"/v1/completions"').string
        line = json.loads(text)
        assert line["tokens_out"] == 3
        assert line["ttft_ms"] > 0
        assert server.end(signal.SIGTERM) == 0
        events = {json.loads(line)["event"] for line in server.output if line}
        assert events == {"request", "pyengine.serve"}

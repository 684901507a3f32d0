"""A full engine: what comes is refused before it is read."""

import asyncio

import httpx
import pytest

from pyengine.actors.heartbeat import Heartbeat
from pyengine.errors import OverloadedError
from pyengine.http.serving.server import HttpServer
from pyengine.request.admission import Admission
from pyengine.settings.config import EngineConfig
from tests.http.fake_engine import FakeEngine

BODY = {"model": "org/fake", "prompt": "hi"}
TWO = EngineConfig(max_sequences=1, max_waiting=1)


async def test_a_request_is_refused_unread(
    http: httpx.AsyncClient, engine: FakeEngine, server: HttpServer
) -> None:
    page = Heartbeat.make()
    engine.admission = Admission(TWO, page, 0)
    engine.hold_after = 1
    running = [asyncio.create_task(http.post("/v1/completions", json=BODY)) for _ in range(2)]
    await engine.until(lambda: len(engine.running) == 2)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/responses"):
        refused = await http.post(path, content=b"{ not JSON")
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "1")
        assert refused.json()["error"]["code"] == "overloaded"
    assert (await http.get("/v1/models")).status_code == 200
    engine.release()
    assert [(await each).status_code for each in running] == [200, 200]
    assert (await http.post("/v1/completions", content=b"{ not JSON")).status_code == 400
    await server.app.running.idle.wait()
    assert page.load() == 0


def test_the_frontends_of_an_engine_are_counted_together() -> None:
    page = Heartbeat.make(frontends=2)
    one, other = (Admission(TWO, page, frontend) for frontend in range(2))
    one.enter()
    other.enter()
    for full in (one, other):
        with pytest.raises(OverloadedError):
            full.enter()
    one.leave()
    other.enter()
    assert Admission(TWO, page, 1).most == 2  # a worker takes the place of one that died
    one.enter()
    one.enter()
    with pytest.raises(OverloadedError):
        one.enter()

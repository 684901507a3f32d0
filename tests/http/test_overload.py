"""A full engine: what comes is refused before it is read."""

import asyncio

import httpx
import pytest

from pyengine.actors.heartbeat import Heartbeat
from pyengine.errors import OverloadedError
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.serving.server import HttpServer
from pyengine.request.admission import Admission
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig
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


@pytest.mark.parametrize("most_running", [1, 8])
async def test_a_key_that_fills_the_queue_leaves_places_to_others(
    engine: FakeEngine, most_running: int
) -> None:
    keys = {"authorization": "Bearer sk-alice-1"}, {"authorization": "Bearer sk-bob-123"}
    rules = AccessSource(ServerConfig(api_key=("sk-alice-1", "sk-bob-123"))).rules()
    await engine.start()
    config = EngineConfig(max_sequences=most_running, max_waiting=32)
    engine.admission = Admission(config, Heartbeat.make(), 0)
    engine.hold_after = 1
    server = HttpServer(engine, port=0, door=Door(rules))
    async with httpx.AsyncClient(base_url=await server.start(), timeout=60) as http:

        async def ask(key: dict[str, str]) -> httpx.Response:
            return await http.post("/v1/completions", json=BODY, headers=key)

        async def run(key: dict[str, str]) -> "asyncio.Task[httpx.Response]":
            before = len(engine.running)
            task = asyncio.create_task(ask(key))
            await engine.until(lambda: len(engine.running) > before)
            return task

        alice, bob = keys
        asked = [await run(alice) for _ in range(most_running + 29)]
        refused = await ask(alice)
        assert refused.status_code == 503
        assert "full of api-key-1's" in refused.json()["error"]["message"]
        asked += [await run(bob) for _ in range(2)]
        engine.release()
        assert {(await one).status_code for one in asked} == {200}
        assert (await ask(alice)).status_code == 200
    await server.stop(0)


@pytest.mark.parametrize("more", [{"n": 6, "temperature": 1.0}, {"prompt": ["hi"] * 6}])
async def test_every_answer_of_a_request_has_a_place_in_the_queue(
    http: httpx.AsyncClient, engine: FakeEngine, server: HttpServer, more: dict[str, object]
) -> None:
    page = Heartbeat.make()
    engine.admission = Admission(EngineConfig(max_sequences=1, max_waiting=9), page, 0)
    engine.hold_after = 1
    first = asyncio.create_task(http.post("/v1/completions", json={**BODY, **more}))
    await engine.until(lambda: len(engine.running) == 6)
    assert page.load() == 6
    refused = await http.post("/v1/completions", json={**BODY, **more})
    assert refused.status_code == 503
    engine.release()
    assert (await first).status_code == 200
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

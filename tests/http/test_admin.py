"""``/admin`` over a real engine: requests are aborted, the cache is reset, the engine sleeps."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.serving.server import HttpServer
from pyengine.settings.server import ServerConfig
from tests.programs import children, environment, served, until, wait_for_end

ADMIN, KEY = "sk-admin-1", "sk-alice-1"
UNRESPONSIVE = "engine_unresponsive"
MODEL = "pyengine-demo"
LONG: dict[str, Any] = {
    "model": MODEL, "prompt": "Go on", "max_tokens": 300, "temperature": 0, "ignore_eos": True,
}  # fmt: skip


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


@pytest.fixture
async def engine() -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(device="simulated", simulated_step_ms=2.0)
    yield engine
    await engine.close()


@pytest.fixture
async def server(engine: AsyncEngine) -> AsyncIterator[HttpServer]:
    await engine.start()
    rules = AccessSource(ServerConfig(admin_key=ADMIN, api_key=(KEY,))).rules()
    server = HttpServer(engine, port=0, door=Door(rules))
    await server.start()
    yield server
    await server.stop(0)


@pytest.fixture
async def http(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=bearer(KEY)) as http:
        yield http


@pytest.fixture
async def admin(server: HttpServer) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=server.url, timeout=60, headers=bearer(ADMIN)) as http:
        yield http


async def ask(http: httpx.AsyncClient, request_id: str, **fields: Any) -> httpx.Response:
    return await http.post(
        "/v1/completions", json={**LONG, **fields}, headers={"x-request-id": request_id}
    )


async def ids(admin: httpx.AsyncClient) -> list[str]:
    return [each["id"] for each in (await admin.get("/admin/requests")).json()["requests"]]


async def until_running(admin: httpx.AsyncClient, count: int) -> list[dict[str, Any]]:
    """The requests, once so many have their first token."""
    async with asyncio.timeout(60):
        while True:
            found = (await admin.get("/admin/requests")).json()["requests"]
            if sum(each["tokens_out"] > 0 for each in found) == count:
                return list(found)


async def test_a_request_is_listed_and_aborted_by_either_id(
    http: httpx.AsyncClient, admin: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    asked = [asyncio.create_task(ask(http, f"job-{n}", max_tokens=1500)) for n in range(3)]
    first, second, third = await until_running(admin, 3)
    assert {each["id"] for each in (first, second, third)} == {"job-0", "job-1", "job-2"}
    assert first["path"] == "/v1/completions"
    assert first["key"] == "api-key"
    assert first["tokens_in"] > 0
    assert first["age_s"] >= second["age_s"] >= third["age_s"] > 0

    for wanted in (first["id"], second["answer_id"]):
        answer = await admin.post("/admin/abort_request", json={"request_id": wanted})
        assert len(answer.json()["requests"]) == 1
    assert await ids(admin) == [third["id"]]
    await admin.post("/admin/abort_request", json={"abort_all": True})
    for answer in await asyncio.gather(*asked):
        assert answer.status_code == 499
        assert answer.json()["error"]["code"] == "aborted"
    await engine.drained()
    report = await engine.report()
    assert report["held"] == report["running"] == 0
    assert await ids(admin) == []


async def test_a_stream_that_is_aborted_ends_with_an_error(
    server: HttpServer, admin: httpx.AsyncClient
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=KEY) as client:
        chunks = await client.completions.create(
            model=MODEL, prompt="Go on", max_tokens=1500, stream=True,
            extra_body={"ignore_eos": True},
        )  # fmt: skip
        first = await anext(chunks)
        assert await admin.post("/admin/abort_request", json={"request_id": first.id})
        with pytest.raises(openai.APIError, match="aborted"):
            async for _ in chunks:
                pass


async def test_unknown_requests_cannot_be_aborted(admin: httpx.AsyncClient) -> None:
    bodies: list[dict[str, Any]] = [
        {"request_id": "no-such"}, {}, {"request_id": "x", "abort_all": True}, {"rid": "x"},
    ]  # fmt: skip
    answers = [await admin.post("/admin/abort_request", json=body) for body in bodies]
    assert [answer.status_code for answer in answers] == [404, 400, 400, 400]
    assert answers[0].json()["error"]["code"] == "request_not_found"


async def test_others_do_not_get_in(server: HttpServer, engine: AsyncEngine) -> None:
    statuses = {None: 401, "wrong-key": 401, KEY: 403}
    async with httpx.AsyncClient(base_url=server.url) as http:
        for key, status in statuses.items():
            for method, path in (
                ("GET", "requests"), ("POST", "abort_request"), ("POST", "reset_prefix_cache"),
                ("POST", "sleep"), ("POST", "wake_up"), ("GET", "is_sleeping"),
            ):  # fmt: skip
                headers = {} if key is None else bearer(key)
                answer = await http.request(method, f"/admin/{path}", headers=headers)
                assert answer.status_code == status
    assert not engine.asleep


async def test_the_prefix_cache_is_reset(
    http: httpx.AsyncClient, admin: httpx.AsyncClient, engine: AsyncEngine
) -> None:
    prompt = {"prompt": "Once upon a time " * 20, "max_tokens": 1}

    async def cached() -> int:
        usage = (await ask(http, "x", **prompt)).json()["usage"]
        return int(usage["prompt_tokens_details"]["cached_tokens"])

    assert await cached() == 0
    assert await cached() > 0
    before = await engine.report()
    answer = await admin.post("/admin/reset_prefix_cache")
    assert answer.json()["freed_blocks"] == before["cached"] > 0
    after = await engine.report()
    assert after["cached"] == 0
    assert after["free"] == after["num_blocks"]
    assert await cached() == 0


async def test_a_reset_leaves_running_requests_alone(
    http: httpx.AsyncClient, admin: httpx.AsyncClient
) -> None:
    undisturbed = (await ask(http, "a")).json()["choices"][0]["text"]
    asked = asyncio.create_task(ask(http, "b"))
    await until_running(admin, 1)
    assert (await admin.post("/admin/reset_prefix_cache")).status_code == 200
    assert (await asked).json()["choices"][0]["text"] == undisturbed


async def test_an_engine_on_a_thread_cannot_sleep(admin: httpx.AsyncClient) -> None:
    answer = await admin.post("/admin/sleep")
    assert answer.status_code == 400
    assert "'placement' of process" in answer.json()["error"]["message"]
    assert (await admin.get("/admin/is_sleeping")).json() == {"asleep": False}


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
async def test_requests_wait_for_an_engine_that_sleeps_and_go_on(workers: int) -> None:
    arguments = ("--port", "0", "--workers", str(workers), "--device", "simulated")
    keys = environment(PYENGINE_ADMIN_KEY=ADMIN)
    with served(*arguments, "--simulated-step-ms", "5", env=keys) as server:
        url = server.url()
        limits = httpx.Limits(max_keepalive_connections=0)  # a connection for each request
        async with (
            httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as http,
            httpx.AsyncClient(
                base_url=url, timeout=60, limits=limits, headers=bearer(ADMIN)
            ) as admin,
        ):
            undisturbed = (await ask(http, "first")).json()["choices"][0]["text"]
            running = [asyncio.create_task(ask(http, f"running-{n}")) for n in range(8)]
            await until_running(admin, 8)
            engine = engine_of(server.process.pid)
            assert (await admin.post("/admin/sleep")).json() == {"asleep": True}
            with pytest.raises(ProcessLookupError):  # its memory is gone with it
                os.kill(engine, 0)
            waiting = [asyncio.create_task(ask(http, f"waiting-{n}")) for n in range(8)]
            async with asyncio.timeout(60):
                while len(await ids(admin)) < 16:
                    pass
            ready = await http.get("/ready")
            assert ready.status_code == 503
            assert "sleeps" in ready.json()["error"]["message"]
            assert (await http.get("/health")).status_code == 200
            assert "pyengine_engine_up" in (await http.get("/metrics")).text
            assert (await admin.post("/admin/sleep")).json() == {"asleep": True}
            assert (await admin.post("/admin/reset_prefix_cache")).status_code == 503
            answer = await admin.post("/admin/abort_request", json={"request_id": "waiting-7"})
            assert [each["id"] for each in answer.json()["requests"]] == ["waiting-7"]
            assert (await waiting.pop()).status_code == 499

            assert (await admin.post("/admin/wake_up")).json() == {"asleep": False}
            for answer in await asyncio.gather(*running, *waiting):
                assert answer.json()["choices"][0]["text"] == undisturbed
            assert (await http.get("/ready")).status_code == 200
            restarts = "pyengine_engine_restarts_total"
            assert f'{restarts}{{model_name="{MODEL}"}} 0.0' in (await http.get("/metrics")).text
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_workers_that_are_replaced_while_the_engine_sleeps_take_requests_and_wake_it() -> (
    None
):
    arguments = ("--port", "0", "--workers", "2", "--device", "simulated")
    keys = environment(PYENGINE_ADMIN_KEY=ADMIN)
    with served(*arguments, "--simulated-step-ms", "1", env=keys) as server:
        url = server.url()
        limits = httpx.Limits(max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=url, timeout=60, limits=limits, headers=bearer(ADMIN)
        ) as admin:
            undisturbed = (await ask(admin, "first")).json()["choices"][0]["text"]
            assert (await admin.post("/admin/sleep")).json() == {"asleep": True}
            before = children(server.process.pid, "worker_main")
            for worker in before:
                os.kill(worker, signal.SIGKILL)
                await wait_for_end(worker)
            supervisor = server.process.pid
            await until(lambda: len({*before, *children(supervisor, "worker_main")}) == 4)
            ready = await admin.get("/ready")
            assert (ready.status_code, ready.json()["error"]["code"]) == (503, UNRESPONSIVE)
            assert "sleeps" in ready.json()["error"]["message"]
            assert (await admin.get("/admin/is_sleeping")).json() == {"asleep": True}
            waiting = [asyncio.create_task(ask(admin, f"waiting-{n}")) for n in range(8)]
            async with asyncio.timeout(60):
                while len(await ids(admin)) < 8:
                    pass
            assert (await admin.post("/admin/wake_up")).json() == {"asleep": False}
            for answer in await asyncio.gather(*waiting):
                assert answer.json()["choices"][0]["text"] == undisturbed
            assert (await admin.get("/ready")).status_code == 200
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_a_server_stops_while_its_engine_sleeps() -> None:
    keys = environment(PYENGINE_ADMIN_KEY=ADMIN)
    with served("--port", "0", "--device", "simulated", env=keys) as server:
        async with httpx.AsyncClient(base_url=server.url(), headers=bearer(ADMIN)) as admin:
            await admin.post("/admin/sleep")
        assert await asyncio.to_thread(server.end, signal.SIGTERM) == 0


@pytest.mark.slow
async def test_an_engine_that_cannot_wake_up_sleeps_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    settings: dict[str, Any] = {"device": "simulated", "simulated_step_ms": 1.0}
    async with AsyncEngine(placement="process", **settings) as engine:
        generation = engine.generate("Go on")
        await anext(generation)
        await engine.sleep()
        monkeypatch.setattr("pyengine.placement.process.spawn", _refuse)
        with pytest.raises(OSError, match="no memory"):
            await engine.wake_up()
        assert engine.asleep
        monkeypatch.undo()
        await engine.wake_up()
        await until(lambda: not engine.asleep)
        assert (await generation).usage.completion_tokens


def _refuse(*_: object) -> None:
    raise OSError("no memory")


def engine_of(parent: int) -> int:
    """The process of the engine that ``parent`` has started."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(state[1]) == parent and "engine_main" in (entry / "cmdline").read_text():
                return int(entry.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    raise AssertionError("there is no engine")

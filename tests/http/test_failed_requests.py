"""A request that fails in the engine: its client is told why, and the log has it with its id."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import openai
import pytest

from pyengine import AsyncEngine
from pyengine._core import NO_TOKEN
from pyengine.http.operations.request_log import RequestLog
from pyengine.http.serving.server import HttpServer
from pyengine.placement.thread import ThreadPlacement
from pyengine.request.request import RequestActor
from tests.programs import until

ASKED: dict[str, Any] = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 40}
STEP = "the engine failed on this request: a model step failed: RuntimeError: injected"
NUMBERS = "the engine failed on this request: the model's logits are not finite"


@pytest.fixture(params=["simulated", "cpu"])
async def engine(request: pytest.FixtureRequest) -> AsyncIterator[AsyncEngine]:
    engine = AsyncEngine(device=request.param, simulated_step_ms=1.0)
    yield engine
    await engine.close()


@pytest.fixture
def written() -> list[bytes]:
    return []


@pytest.fixture
async def server(engine: AsyncEngine, written: list[bytes]) -> AsyncIterator[HttpServer]:
    await engine.start()
    log = RequestLog("info", "json", write=written.append)
    server = HttpServer(engine, port=0, request_log=log)
    await server.start()
    yield server
    await server.stop(0)


def runner_of(engine: AsyncEngine) -> Any:
    placement = engine.placement
    assert isinstance(placement, ThreadPlacement)
    assert placement.actors is not None
    return placement.actors.scheduler.runner


def break_a_step(engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch, after: int = 0) -> None:
    """Let one launch fail, behind ``after`` of them."""
    kind = type(runner_of(engine))
    launch: Callable[..., Any] = kind.launch
    left = [after]

    def fail_once(self: object, buffers: object) -> object:
        if left[0] > 0:
            left[0] -= 1
            return launch(self, buffers)
        monkeypatch.setattr(kind, "launch", launch)
        raise RuntimeError("injected\nwith secrets of the next line")

    monkeypatch.setattr(kind, "launch", fail_once)


async def logged(server: HttpServer, written: list[bytes]) -> dict[str, Any]:
    """The line of the request that failed."""
    await server.stop()
    lines = [json.loads(line) for block in written for line in block.splitlines()]
    (found,) = [line for line in lines if line["level"] == "error"]
    return dict(found)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_step_that_fails_before_the_answer(
    engine: AsyncEngine,
    server: HttpServer,
    written: list[bytes],
    monkeypatch: pytest.MonkeyPatch,
    stream: bool,
) -> None:
    break_a_step(engine, monkeypatch)
    async with httpx.AsyncClient(base_url=server.url, headers={"x-request-id": "mine"}) as http:
        answer = await http.post("/v1/completions", json={**ASKED, "stream": stream})
        again = await http.post("/v1/completions", json={**ASKED, "max_tokens": 2})
    assert answer.status_code == 500
    error = answer.json()["error"]
    assert error == {"message": STEP, "type": "server_error", "param": None, "code": error["code"]}
    assert error["code"] == "request_failed"
    assert again.status_code == 200
    line = await logged(server, written)
    assert (line["id"], line["status"]) == ("mine", 500)
    assert line["error"] == f"request_failed: {STEP}"


async def test_a_step_that_fails_within_a_stream(
    engine: AsyncEngine, server: HttpServer, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none") as client:
        chunks = await client.completions.create(
            **{**ASKED, "max_tokens": 400}, stream=True, extra_body={"ignore_eos": True},
            extra_headers={"x-request-id": "mine"},
        )  # fmt: skip
        await anext(chunks)
        break_a_step(engine, monkeypatch)
        with pytest.raises(openai.APIError, match="a model step failed"):
            async for _ in chunks:
                pass
    line = await logged(server, written)
    assert (line["id"], line["error"]) == ("mine", f"request_failed: {STEP}")
    report = await engine.report()
    assert report["held"] == report["running"] == 0


@pytest.mark.parametrize("engine", ["cpu"], indirect=True)
async def test_logits_that_are_not_finite(
    engine: AsyncEngine, server: HttpServer, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = runner_of(engine)
    launch = type(scheduler).launch

    def spoil(self: object, buffers: object) -> Any:
        handle = launch(self, buffers)
        wait = handle.wait

        def spoiled() -> Any:
            results = wait()
            results.tokens[:] = NO_TOKEN
            return results

        monkeypatch.setattr(handle, "wait", spoiled, raising=False)
        return handle

    monkeypatch.setattr(type(scheduler), "launch", spoil)
    async with httpx.AsyncClient(base_url=server.url) as http:
        answer = await http.post("/v1/completions", json=ASKED)
    assert answer.status_code == 500
    assert answer.json()["error"]["message"].startswith(NUMBERS)
    assert (await logged(server, written))["error"].startswith(f"request_failed: {NUMBERS}")


async def test_a_grammar_that_breaks_after_it_was_compiled(
    engine: AsyncEngine, server: HttpServer, written: list[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the engine answers where a token is chosen against the mask."""
    deliver = RequestActor.deliver

    def with_cause(self: RequestActor, delta: Any) -> None:
        if delta.finish is not None:
            delta.finish, delta.notice = "error", "a token was chosen that the grammar forbids"
        deliver(self, delta)

    monkeypatch.setattr(RequestActor, "deliver", with_cause)
    schema = {"name": "city", "schema": {"type": "object", "properties": {"a": {"type": "null"}}}}
    body = {
        "model": "pyengine-demo",
        "messages": [{"role": "user", "content": "hi"}],
        "response_format": {"type": "json_schema", "json_schema": schema},
    }
    async with httpx.AsyncClient(base_url=server.url, timeout=60) as http:
        answer = await http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 500
    assert "a token was chosen that the grammar forbids" in answer.json()["error"]["message"]
    assert "grammar forbids" in (await logged(server, written))["error"]


async def test_a_request_that_is_stopped_with_the_engine_says_so(
    engine: AsyncEngine, server: HttpServer, written: list[bytes]
) -> None:
    async with httpx.AsyncClient(base_url=server.url) as http:
        asked = asyncio.create_task(
            http.post("/v1/completions", json={**ASKED, "max_tokens": 400, "ignore_eos": True})
        )
        await until(
            lambda: (
                engine.connection.frontend is not None and bool(engine.connection.frontend.requests)
            )
        )
        await engine.close()
        answer = await asked
    assert answer.json()["error"] == {
        "message": "the engine was closed", "type": "server_error", "param": None,
        "code": "engine_dead",
    }  # fmt: skip
    assert (await logged(server, written))["error"] == "engine_dead: the engine was closed"

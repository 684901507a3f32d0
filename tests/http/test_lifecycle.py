"""Loading, readiness, overload, disconnects, draining, signals, ports."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from pyengine.errors import ConfigError, NotReadyError, OverloadedError
from pyengine.http.limits import Limits
from pyengine.http.serving.server import BROKEN_OFF, HttpServer, serve
from pyengine.model.progress import Progress
from pyengine.settings.server import ServerConfig
from tests.http.fake_engine import ANSWER, FakeEngine

MODEL = "org/fake"
CHAT = "/v1/chat/completions"
BODY: dict[str, Any] = {"model": MODEL, "messages": [{"role": "user", "content": "hi"}]}


async def test_loading_then_ready(server: HttpServer, engine: FakeEngine) -> None:
    engine.ready = False
    async with httpx.AsyncClient(base_url=server.url) as http:
        assert (await http.get("/health")).status_code == 200
        for answer in (
            await http.get("/ready"),
            await http.get("/v1/models"),
            await http.post(CHAT, json=BODY),
        ):
            assert answer.status_code == 503
            assert int(answer.headers["retry-after"]) >= 1
            assert answer.json()["error"]["code"] == "not_ready"
        engine.ready = True
        assert (await http.get("/ready")).status_code == 200
        engine.failure = RuntimeError("secret")
        answer = await http.get("/ready")
        assert (answer.status_code, answer.json()["error"]["code"]) == (500, "engine_dead")
        assert "secret" not in answer.text


async def test_models(http: httpx.AsyncClient) -> None:
    models = (await http.get("/v1/models")).json()
    assert [model["id"] for model in models["data"]] == [MODEL]
    assert models["object"] == "list"
    for name in ("org/fake", "org%2Ffake"):
        assert (await http.get(f"/v1/models/{name}")).json() == models["data"][0]
    answer = await http.get("/v1/models/other")
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")


@pytest.mark.parametrize("error", [OverloadedError("full"), NotReadyError("not yet")])
@pytest.mark.parametrize("stream", [False, True])
async def test_the_engine_is_busy(
    http: httpx.AsyncClient, engine: FakeEngine, error: Exception, stream: bool
) -> None:
    for engine.refuse, engine.fail_after in ((error, None), (None, (0, error))):
        answer = await http.post(CHAT, json={**BODY, "stream": stream})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"


async def _connect(server: HttpServer, stream: bool) -> tuple[asyncio.StreamReader, Any]:
    host, port = server.url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    body = httpx.Request("POST", server.url, json={**BODY, "stream": stream}).content
    writer.write(
        b"POST %b HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
        b"content-length: %d\r\n\r\n%b" % (CHAT.encode(), len(body), body)
    )
    return reader, writer


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("hold_after", [0, 3])
async def test_a_client_that_leaves(
    server: HttpServer, engine: FakeEngine, stream: bool, hold_after: int
) -> None:
    engine.hold_after = hold_after
    _, writer = await _connect(server, stream)
    await engine.until(lambda: any(g.shown == hold_after for g in engine.running))
    writer.close()
    await engine.until(lambda: engine.aborted == 1)
    assert not engine.running
    await server.app.running.idle.wait()


async def test_two_hundred_streams_half_of_them_dropped(
    server: HttpServer, engine: FakeEngine
) -> None:
    engine.hold_after = 4
    connections = [await _connect(server, stream=True) for _ in range(200)]
    await engine.until(lambda: sum(g.shown == 4 for g in engine.running) == 200)
    for _, writer in connections[::2]:
        writer.transport.abort()
    await engine.until(lambda: engine.aborted == 100)
    engine.release()
    for reader, writer in connections[1::2]:
        assert b"data: [DONE]" in await reader.readuntil(b"data: [DONE]\n\n")
        writer.close()
    assert not engine.running
    await server.app.running.idle.wait()


async def test_draining_lets_streams_finish(server: HttpServer, engine: FakeEngine) -> None:
    engine.hold_after = 1
    async with httpx.AsyncClient(base_url=server.url) as http:
        answers = [
            asyncio.create_task(http.post(CHAT, json={**BODY, "stream": stream}))
            for stream in (True, False)
        ]
        await engine.until(lambda: len(engine.running) == 2)
        stopping = asyncio.create_task(server.stop(60))
        await asyncio.sleep(0)  # one turn of the loop
        assert server.app.draining
        refused = await http.post(CHAT, json=BODY)
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "shutting_down")
        assert refused.headers["retry-after"] == "1"
        assert (await http.get("/ready")).status_code == 503
        engine.release()
        stream, whole = await asyncio.gather(*answers)
        await stopping
    assert stream.text.endswith("data: [DONE]\n\n")
    assert whole.json()["choices"][0]["message"]["content"] == ANSWER
    with pytest.raises(OSError):  # noqa: PT011 (refused, whatever the platform calls it)
        await asyncio.open_connection("127.0.0.1", int(server.url.rsplit(":", 1)[1]))


async def test_draining_is_bounded(server: HttpServer, engine: FakeEngine) -> None:
    engine.hold_after = 1
    async with httpx.AsyncClient(base_url=server.url) as http:
        answers = [
            asyncio.create_task(http.post(CHAT, json={**BODY, "stream": stream}))
            for stream in (True, False)
        ]
        await engine.until(lambda: sum(g.shown == 1 for g in engine.running) == 2)
        await server.stop(0.05)
        stream, whole = await asyncio.gather(*answers)
    assert '"code":"shutting_down"' in stream.text
    assert "[DONE]" not in stream.text
    assert (whole.status_code, whole.json()["error"]["code"]) == (503, "shutting_down")
    assert (engine.aborted, len(engine.running)) == (2, 0)


async def test_a_port_in_use(server: HttpServer) -> None:
    port = int(server.url.rsplit(":", 1)[1])
    with pytest.raises(ConfigError, match=f"port {port} on 127.0.0.1 is in use"):
        await HttpServer(FakeEngine(), port=port).start()
    with pytest.raises(ConfigError, match="not between"):
        await HttpServer(FakeEngine(), port=70000).start()
    with pytest.raises(ConfigError, match="cannot listen"):
        await HttpServer(FakeEngine(), host="192.0.2.1", port=0).start()


async def test_a_port_is_free_again_after_stop() -> None:
    engine = FakeEngine()
    first = HttpServer(engine, port=0)
    port = int((await first.start()).rsplit(":", 1)[1])
    await first.stop()
    await first.stop()
    second = HttpServer(engine, port=port)
    await second.start()
    async with httpx.AsyncClient(base_url=second.url) as http:
        assert (await http.get("/health")).status_code == 200
    await second.stop()


async def test_serve_raises_what_loading_raises() -> None:
    class Broken(FakeEngine):
        async def start(self, progress: Progress | None = None) -> None:
            raise RuntimeError("no weights")

    engine = Broken()
    said: list[str] = []
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(RuntimeError, match="no weights"):
        await serve(engine, ServerConfig(port=0), announce=said.append)
    assert engine.closed
    assert said[0].startswith("listening on http://127.0.0.1:")
    assert signal.getsignal(signal.SIGTERM) is before


SCRIPT = """
import asyncio, sys
sys.path.insert(0, {here!r})
from tests.http.fake_engine import FakeEngine
from pyengine.http.serving.server import leave, serve
from pyengine.settings.server import ServerConfig

async def main():
    engine = FakeEngine(hold_after={hold})
    broken_off = await serve(engine, ServerConfig(port=0, drain_seconds={drain}),
                               announce=lambda line: print(line, flush=True))
    print("closed", engine.closed, engine.aborted, flush=True)
    return broken_off

leave(broken_off=asyncio.run(main()))
"""


@pytest.mark.parametrize(("kind", "drain", "signals"), [("SIGTERM", 0.1, 1), ("SIGINT", 600, 2)])
async def test_signals(kind: str, drain: float, signals: int) -> None:
    here = str(Path(__file__).parent)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        SCRIPT.format(here=here, hold=1, drain=drain),
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
    )
    assert process.stdout is not None
    lines = process.stdout
    listening = (await lines.readline()).decode()
    url = listening.split()[2].rstrip(",")
    assert (await lines.readline()).decode().startswith("ready: org/fake at ")
    async with (
        httpx.AsyncClient(base_url=url) as http,
        http.stream("POST", CHAT, json={**BODY, "stream": True}) as answer,
    ):
        text = answer.aiter_text()
        assert "assistant" in await anext(text)
        for _ in range(signals):
            process.send_signal(getattr(signal, kind))
            if _ == 0:
                assert (await lines.readline()).decode().startswith("draining 1 request")
        rest = "".join([piece async for piece in text])
    assert '"code":"shutting_down"' in rest
    assert (await lines.readline()).decode().split() == ["closed", "True", "1"]
    assert await process.wait() == BROKEN_OFF


def test_a_server_leaves_logging_as_it_was() -> None:
    import logging

    from pyengine.http.serving.granian_server import GranianServer

    root = logging.getLogger()
    before = list(root.handlers), root.level
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))

        async def make() -> None:
            from pyengine.http.app import App

            GranianServer(App(FakeEngine(), Limits()), listener, 100)

        asyncio.run(make())
    assert (list(root.handlers), root.level) == before

"""The router between engines of any machine: bytes pass unchanged, replicas come and go."""

import asyncio
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import pytest

from pyengine.http.replicas.replica_set import free_port
from pyengine.http.replicas.router import Router
from tests.programs import served
from tests.replicas.conftest import REQUESTS, SIMULATED, Answers, ask_many, question

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

MODEL = "pyengine-demo"
STREAMS = {
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": "Tell me a story."}],
        "max_tokens": 20,
        "stream_options": {"include_usage": True},
    },
    "/v1/completions": {"prompt": ["Go on", "And then"], "max_tokens": 20, "n": 2},
    "/v1/responses": {"input": "Tell me a story.", "max_output_tokens": 20, "store": False},
}


@asynccontextmanager
async def routing() -> AsyncIterator[Router]:
    """A router without replicas."""
    router = Router("127.0.0.1", free_port(), free_port(), drain_seconds=5)
    await router.start()
    try:
        yield router
    finally:
        router.program.kill()
        await router.program.ended()


class Recorder:
    """A server that passes bytes on to another, and keeps what that answers."""

    def __init__(self, url: str) -> None:
        self._port = int(url.rpartition(":")[2])
        self.answers: list[bytes] = []

    async def connected(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        """Pass on one connection, both ways."""
        answers, server = await asyncio.open_connection("127.0.0.1", self._port)
        place = len(self.answers)
        self.answers.append(b"")

        async def forth() -> None:
            while data := await client.read(1 << 16):
                server.write(data)
            server.close()

        forwarding = asyncio.create_task(forth())
        while data := await answers.read(1 << 16):
            self.answers[place] += data
            back.write(data)
        back.close()
        await forwarding


def unchunked(data: bytes) -> bytes:
    """The body of a whole HTTP message in chunks."""
    body = b""
    while data:
        size, _, rest = data.partition(b"\r\n")
        length = int(size, 16)
        body += rest[:length]
        data = rest[length + 2 :] if length else b""
    return body


@pytest.mark.parametrize("path", STREAMS)
async def test_the_bytes_of_a_stream_pass_unchanged(alone: str, path: str) -> None:
    recorder = Recorder(alone)
    server = await asyncio.start_server(recorder.connected, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with server, routing() as router, httpx.AsyncClient(timeout=60) as client:
        await router.add(url, MODEL)
        body = {"model": MODEL, "temperature": 0, "stream": True, **STREAMS[path]}
        answer = await client.post(f"{router.url}{path}", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/event-stream")
    sent = [text for text in recorder.answers if b"text/event-stream" in text]
    assert len(sent) == 1
    sent_body = sent[0].partition(b"content-type: text/event-stream")[2].partition(b"\r\n\r\n")[2]
    assert answer.content == unchunked(sent_body)
    assert answer.content.count(b"\n\n") > 2


async def test_replicas_come_and_go_without_losing_a_request(alone: str) -> None:
    with served("--port", "0", *SIMULATED) as second:
        other = second.url()
        async with routing() as router:
            first = await router.add(alone, MODEL)
            finished, enough = Answers(), asyncio.Event()

            async def keep_asking(begin: int, client: httpx.AsyncClient) -> None:
                for number in range(begin, begin + REQUESTS):
                    url = f"{router.url}/v1/chat/completions"
                    finished.add(await client.post(url, json=question(number)))
                    if finished.statuses.total() > REQUESTS / 4:
                        enough.set()

            async with httpx.AsyncClient(timeout=60) as client:
                asking = [asyncio.create_task(keep_asking(at * 1000, client)) for at in range(4)]
                await enough.wait()
                await router.add(other, MODEL)
                await router.remove(first)
                await asyncio.gather(*asking)
            assert finished.statuses == {200: 4 * REQUESTS}
            # The one that was added does the work of the one that was removed.
            assert (await ask_many(router.url, 20)).statuses == {200: 20}
        assert second.end(signal.SIGTERM) == 0


async def test_a_drained_replica_finishes_its_streams(alone: str) -> None:
    async with routing() as router, httpx.AsyncClient(timeout=60) as client:
        name = await router.add(alone, MODEL)
        body = {"model": MODEL, "prompt": "Go on", "max_tokens": 400, "ignore_eos": True}
        url = f"{router.url}/v1/completions"
        async with client.stream("POST", url, json={**body, "stream": True}) as answer:
            lines = answer.aiter_lines()
            await anext(lines)
            await router.remove(name)
            rest = [line async for line in lines if line.startswith("data:")]
        assert rest[-1] == "data: [DONE]"
        assert '"finish_reason":"length"' in rest[-2]

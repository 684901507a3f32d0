"""``pyengine serve --workers``: one port, several HTTP processes, one engine; deaths of each."""

import asyncio
import os
import re
import signal
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import httpx
import msgspec
import openai
import pytest
from openai import AsyncOpenAI, AsyncStream
from openai.types import Completion

from pyengine import SamplingParams
from pyengine._core import Track
from pyengine.actors.actor import ActorRef
from pyengine.async_engine import AsyncEngine
from pyengine.errors import RequestAbortedError
from pyengine.http.serving.server import BROKEN_OFF
from pyengine.http.serving.supervisor import Supervisor
from pyengine.placement.process import ProcessPlacement
from pyengine.request.frontend import Frontend
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig
from tests.programs import Server, children, free, served, until, wait_for_end

SERVE = ("--port", "0", "--workers", "2", "--device", "simulated", "--simulated-step-ms", "5")
LONG = 300
WAIT_S = 60


@dataclass
class Stream:
    """A completion that is read to its end, or to where it broke."""

    chunks: AsyncStream[Completion]
    worker: str = ""
    text: str = ""
    tokens: int = 0
    error: Exception | None = field(default=None)

    async def begin(self) -> None:
        """Read the first chunk: it says which process answers."""
        self.take(await anext(self.chunks))

    async def finish(self) -> None:
        try:
            async for chunk in self.chunks:
                self.take(chunk)
        except (openai.APIError, httpx.HTTPError) as error:
            self.error = error

    def take(self, chunk: Completion) -> None:
        self.worker = chunk.id.removeprefix("cmpl-")[:16]  # of the process, not of the request
        if chunk.usage is not None:
            self.tokens = chunk.usage.completion_tokens
        self.text += "".join(choice.text for choice in chunk.choices)


async def stream(client: AsyncOpenAI, prompt: str = "Go on", max_tokens: int = LONG) -> Stream:
    """A stream on a connection of its own that has begun."""
    chunks = await client.completions.create(
        model="pyengine-demo",
        prompt=prompt,
        max_tokens=max_tokens,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    begun = Stream(chunks)
    await begun.begin()
    return begun


async def streams_of_two(client: AsyncOpenAI) -> list[Stream]:
    """Streams that both workers answer."""
    streams = [await stream(client)]
    while len({one.worker for one in streams}) < 2:
        assert len(streams) < 100, "one worker takes every connection"
        streams.append(await stream(client))
    return streams


@asynccontextmanager
async def client_of(url: str) -> AsyncIterator[AsyncOpenAI]:
    limits = httpx.Limits(max_keepalive_connections=0)  # a connection for each request
    async with (
        httpx.AsyncClient(limits=limits, timeout=WAIT_S) as http,
        AsyncOpenAI(
            base_url=f"{url}/v1",
            api_key="none",
            max_retries=0,
            http_client=cast(Any, http),  # which package's client is wanted differs by version
        ) as client,
    ):
        yield client


def files_in_shared_memory(pids: list[int]) -> set[Path]:
    """The named shared memory that these processes have mapped."""
    lines = [line for pid in pids for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
    return {Path("/" + line.partition(" /")[2]) for line in lines if " /dev/shm/" in line}


def workers_of(server: Server) -> list[int]:
    return children(server.process.pid, "worker_main")


@pytest.mark.slow
async def test_two_workers_answer_on_one_port() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            streams = await streams_of_two(client)
            for one in streams:
                await one.finish()
            assert {(one.tokens, one.error) for one in streams} == {(LONG, None)}
            assert len({one.text for one in streams}) == 1
            whole = await client.completions.create(
                model="pyengine-demo",
                prompt="Go on",
                max_tokens=LONG,
                temperature=0,
                extra_body={"ignore_eos": True},
            )
            assert whole.choices[0].text == streams[0].text
            assert whole.usage is not None
            assert whole.usage.completion_tokens == LONG
        assert "2 HTTP workers" in "".join(server.output)
        assert server.end(signal.SIGTERM) == 0
        assert server.output[-2:] == ["stopped\n", ""]


@pytest.mark.slow
async def test_connections_that_come_at_once_are_spread_over_the_workers() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            streams = await asyncio.gather(*(stream(client, max_tokens=1) for _ in range(64)))
            shares = Counter(one.worker for one in streams)
            await asyncio.gather(*(one.finish() for one in streams))
        # By chance, one worker has less than a quarter of 64 in one run of 40,000.
        assert len(shares) == 2
        assert min(shares.values()) >= 16


async def test_kill_9_of_a_worker_takes_only_its_own_streams() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            streams = await streams_of_two(client)
            before = workers_of(server)
            os.kill(before[0], signal.SIGKILL)
            await asyncio.gather(*(one.finish() for one in streams))
            # One of the killed worker's may have been whole before.
            [broken] = {one.worker for one in streams if one.error is not None}
            whole = {one.worker for one in streams} - {broken}
            assert len(whole) == 1
            assert all(one.tokens == LONG for one in streams if one.worker != broken)
            # Another one takes its place.
            answered = set(whole)
            while len(answered) < 2:
                one = await stream(client, max_tokens=1)
                await one.finish()
                assert one.error is None
                answered.add(one.worker)
            assert broken not in answered
            after = workers_of(server)
            assert len(after) == 2
            assert len({*before, *after}) == 3
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_streams_go_on_over_kill_9_of_the_engine() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            undisturbed = await stream(client)
            await undisturbed.finish()
            streams = await streams_of_two(client)
            [engine] = children(server.process.pid, "engine_main")
            os.kill(engine, signal.SIGKILL)
            await asyncio.gather(*(one.finish() for one in streams))
            for one in streams:
                assert (one.error, one.text, one.tokens) == (None, undisturbed.text, LONG)
            [successor] = children(server.process.pid, "engine_main")
            assert successor != engine
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_every_stream_survives_three_deaths_of_the_engine() -> None:
    with served(*SERVE, "--mode", "server") as server:
        url = server.url()
        async with client_of(url) as client, httpx.AsyncClient(timeout=WAIT_S) as http:
            undisturbed = await stream(client)
            await undisturbed.finish()
            streams = [asyncio.create_task(whole_stream(client)) for _ in range(60)]
            for death in range(3):
                [engine] = children(server.process.pid, "engine_main")
                os.kill(engine, signal.SIGKILL)
                async with asyncio.timeout(WAIT_S):
                    while await restarts(http, url) <= death:
                        pass
            for one in await asyncio.gather(*streams):
                assert (one.error, one.text, one.tokens) == (None, undisturbed.text, LONG)
        assert server.end(signal.SIGTERM) == 0


async def whole_stream(client: AsyncOpenAI) -> Stream:
    one = await stream(client)
    await one.finish()
    return one


async def restarts(http: httpx.AsyncClient, url: str) -> float:
    """How often the engine was restarted."""
    metrics = (await http.get(f"{url}/metrics")).text
    found = re.search(r"^pyengine_engine_restarts_total\S* (\S+)", metrics, re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.slow
async def test_a_stopped_engine_is_not_ready_and_its_streams_are_kept_alive() -> None:
    with served(*SERVE) as server:
        url = server.url()
        async with client_of(url) as client, httpx.AsyncClient(timeout=WAIT_S) as http:
            undisturbed = await stream(client)
            await undisturbed.finish()
            streams = await streams_of_two(client)
            raw = {"model": "pyengine-demo", "prompt": "Go on", "stream": True}
            async with http.stream("POST", f"{url}/v1/completions", json=raw) as answer:
                lines = answer.aiter_lines()
                await anext(lines)
                [engine] = children(server.process.pid, "engine_main")
                os.kill(engine, signal.SIGSTOP)
                async with asyncio.timeout(WAIT_S):
                    while (ready := await http.get(f"{url}/ready")).status_code == 200:
                        pass
                    error = ready.json()["error"]
                    assert error["code"] == "engine_unresponsive"
                    assert "it has not run for" in error["message"]
                    metrics = (await http.get(f"{url}/metrics")).text
                    assert 'pyengine_engine_up{model_name="pyengine-demo"} 0.0' in metrics
                    while await anext(lines) != ": keep-alive":
                        pass
                os.kill(engine, signal.SIGCONT)
                assert [line async for line in lines][-2] == "data: [DONE]"
            await asyncio.gather(*(one.finish() for one in streams))
            for one in streams:
                assert (one.error, one.text, one.tokens) == (None, undisturbed.text, LONG)
            assert (await http.get(f"{url}/ready")).status_code == 200
        assert server.end(signal.SIGTERM) == 0


@pytest.mark.slow
async def test_sigterm_lets_every_worker_finish() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            streams = await streams_of_two(client)
            everyone = children(server.process.pid)
            server.process.send_signal(signal.SIGTERM)
            await asyncio.gather(*(one.finish() for one in streams))
            assert {(one.tokens, one.error) for one in streams} == {(LONG, None)}
        assert await asyncio.to_thread(server.wait) == 0
        server.expect(r"worker 0: draining \d+ requests")
        server.expect(r"worker 1: draining \d+ requests")
        for pid in everyone:
            with pytest.raises(ProcessLookupError):
                os.kill(pid, 0)


@pytest.mark.slow
async def test_a_second_signal_stops_everyone_at_once() -> None:
    with served(*SERVE) as server:
        async with client_of(server.url()) as client:
            streams = [await stream(client, max_tokens=1500) for _ in range(2)]
            server.process.send_signal(signal.SIGINT)
            await asyncio.to_thread(server.expect, r"draining \d+ requests")
            server.process.send_signal(signal.SIGINT)
            await asyncio.gather(*(one.finish() for one in streams))
            assert all(
                one.error is not None and "shutting down" in str(one.error) for one in streams
            )
        assert await asyncio.to_thread(server.wait) == BROKEN_OFF


@pytest.mark.slow
async def test_kill_9_of_the_supervisor_leaves_nothing() -> None:
    with served(*SERVE) as server:
        url = server.url()
        async with client_of(url) as client:
            await stream(client)
            everyone = children(server.process.pid)
            assert len(everyone) == 3
            shared = files_in_shared_memory([server.process.pid, *everyone])
            server.process.kill()
            for pid in everyone:
                await wait_for_end(pid)
        assert free(int(url.rpartition(":")[2]))
    assert [path for path in shared if path.exists()] == []


@pytest.mark.slow
async def test_a_dead_workers_blocks_are_free_again() -> None:
    config = EngineConfig(device="simulated", simulated_step_ms=5)
    supervisor = Supervisor(config, ServerConfig(workers=2, port=0))
    supervisor.start()
    try:
        await supervisor.engine.start()
        await supervisor.ready()
        async with client_of(supervisor.url) as client:
            streams = await streams_of_two(client)
            asked = asyncio.gather(*(one.finish() for one in streams))
            before = await supervisor.engine.report()
            assert before["running"] == len(streams)
            assert before["held"] > 0
            supervisor.workers[0].process.kill()
            while (await supervisor.engine.report())["finished_abort"] == 0:
                pass
            await asked
            broken = [one for one in streams if one.error is not None]
            report = await supervisor.engine.report()
            assert report["finished_abort"] == len(broken) > 0
            assert report["held"] == report["running"] == report["waiting"] == 0
    finally:
        await supervisor.stop()


@pytest.mark.slow
async def test_workers_say_503_until_the_engine_runs() -> None:
    supervisor = Supervisor(EngineConfig(device="simulated"), ServerConfig(workers=2, port=0))
    supervisor.start()
    try:
        async with httpx.AsyncClient(timeout=WAIT_S) as client:
            answer = await client.get(f"{supervisor.url}/ready")
            assert answer.status_code == 503
            assert answer.headers["retry-after"]
            await supervisor.engine.start()
            await supervisor.ready()
            # The signal was sent; the worker may not have noticed yet.
            while (answer := await client.get(f"{supervisor.url}/ready")).status_code == 503:
                pass
            assert answer.status_code == 200
    finally:
        await supervisor.stop()


async def test_a_stopped_worker_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyengine.http.serving.supervisor.HANG_S", 5)
    supervisor = Supervisor(EngineConfig(device="simulated"), ServerConfig(workers=2, port=0))
    supervisor.start()
    try:
        await supervisor.engine.start()
        await supervisor.ready()
        stopped = supervisor.workers[0]
        os.kill(stopped.process.pid, signal.SIGSTOP)
        await until(lambda: supervisor.workers.get(0) not in (None, stopped))
        assert stopped.process.returncode == -signal.SIGKILL
        async with client_of(supervisor.url) as client:
            streams = await streams_of_two(client)
            await asyncio.gather(*(one.finish() for one in streams))
            assert {one.error for one in streams} == {None}
    finally:
        await supervisor.stop()


async def test_others_answer_what_comes_to_a_stopped_worker() -> None:
    """Half of these connections come to the socket of the worker that does not run."""
    supervisor = Supervisor(EngineConfig(device="simulated"), ServerConfig(workers=2, port=0))
    supervisor.start()
    body = {"model": "pyengine-demo", "prompt": "Go on", "max_tokens": 5, "ignore_eos": True}
    try:
        await supervisor.engine.start()
        await supervisor.ready()
        stopped = supervisor.workers[0]
        os.kill(stopped.process.pid, signal.SIGSTOP)
        for _ in range(20):
            async with httpx.AsyncClient(base_url=supervisor.url, timeout=WAIT_S) as client:
                answer = await client.post("/v1/completions", json=body)
                assert answer.json()["usage"]["completion_tokens"] == 5
        assert supervisor.workers[0] is stopped
        os.kill(stopped.process.pid, signal.SIGCONT)
    finally:
        await supervisor.stop()


async def test_a_successors_requests_are_not_aborted_with_the_dead_ones() -> None:
    placement = ProcessPlacement(frontends=2)
    async with AsyncEngine(device="simulated", placement=placement) as engine:
        queues = placement.queues
        other = Frontend(
            0,
            ActorRef("frontend-0", queues.frontends[0]),
            ActorRef("scheduler", queues.scheduler),
            queues.recorder.timeline(Track.FRONTEND),
        )
        other.open()
        mine = engine.generate("Go on", SamplingParams(max_tokens=20, ignore_eos=True))
        template = mine._actor.submit
        old, new = (
            other.submit(msgspec.structs.replace(template, key=other.next_key())) for _ in range(2)
        )
        engine.connection.abort_frontend(0, new.submit.key.request)
        with pytest.raises(RequestAbortedError):
            await old.completion()
        assert (await new.completion()).usage.completion_tokens == 20
        assert (await mine).usage.completion_tokens == 20
        other.close()

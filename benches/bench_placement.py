"""What a request costs in each placement: CPU time and latency, for a request and for a token.

On the simulated device, so that a model costs nothing: the library with its engine on a thread and
in a process, and ``pyengine serve`` with its engine on a thread, in a process, and with two HTTP
workers. The floor is granian with an application that answers, or streams, constants: what HTTP
alone costs here.

``latency`` is the median wall time of a request for one token that is alone. ``cpu/request`` is CPU
time of all processes of the engine and the server (for the library: also of the caller, which is
one with it) for a request of one token with 16 in flight. ``cpu/token`` is the further CPU time for
each token of 16 streams. The HTTP client's time is not counted. A step of the device takes
``--step-ms``, at least, and is part of the latency. A run takes about half a minute.

    python benches/bench_placement.py [--json PATH] [--step-ms MS]      (- is standard output)
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams
from pyengine.placement import PlacementName

IN_FLIGHT = 16
ALONE = 60
REQUESTS = 1600
STREAMS = 96
TOKENS = 64
PYENGINE = (sys.executable, "-m", "pyengine")

Ask = Callable[[int, bool], Awaitable[None]]
"""Ask for a number of tokens, streamed or not, and wait for the end."""
Figures = dict[str, float]


def family(pid: int) -> list[int]:
    """``pid`` and all that it has started."""
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(FileNotFoundError, ProcessLookupError):
            parents[int(entry.name)] = int(
                (entry / "stat").read_text().rpartition(")")[2].split()[1]
            )
    found = [pid]
    for one in found:
        found.extend(child for child, parent in parents.items() if parent == one)
    return found


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that the processes have taken, in all threads, also those that have ended."""
    # The clock that clock_getcpuclockid(3) names for another process.
    return sum(time.clock_gettime(~pid << 3 | 2) for pid in pids)


async def load(ask: Ask, count: int, tokens: int, *, stream: bool) -> None:
    """``count`` requests, with IN_FLIGHT of them at a time."""
    left = iter(range(count))

    async def client() -> None:
        for _ in left:
            await ask(tokens, stream)

    await asyncio.gather(*(client() for _ in range(IN_FLIGHT)))


async def measure(ask: Ask, pids: list[int]) -> Figures:
    """The three figures, in microseconds."""
    await load(ask, 4 * IN_FLIGHT, 2, stream=True)
    alone = []
    for _ in range(ALONE):
        begin = time.perf_counter()
        await ask(1, False)
        alone.append(time.perf_counter() - begin)
    begin = cpu_seconds(pids)
    await load(ask, REQUESTS, 1, stream=False)
    request = (cpu_seconds(pids) - begin) / REQUESTS
    begin = cpu_seconds(pids)
    await load(ask, STREAMS, TOKENS, stream=True)
    token = (cpu_seconds(pids) - begin - STREAMS * request) / (STREAMS * (TOKENS - 1))
    return {
        "latency_us": median(alone) * 1e6,
        "cpu_us_request": request * 1e6,
        "cpu_us_token": max(token, 0.0) * 1e6,
    }


async def library(placement: PlacementName, step_ms: float) -> Figures:
    """The engine in this process's asyncio loop's service."""
    engine = AsyncEngine(device="simulated", simulated_step_ms=step_ms, placement=placement)
    async with engine:

        async def ask(tokens: int, stream: bool) -> None:
            params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
            generation = engine.generate("Go on", params)
            if stream:
                async for _ in generation:
                    pass
            else:
                await generation

        return await measure(ask, family(os.getpid()))


class Client:
    """Requests over kept connections: as little of HTTP as will do."""

    def __init__(self, host: str, port: int) -> None:
        self._address = (host, port)
        self._idle: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []

    async def ask(self, tokens: int, stream: bool) -> None:
        """As ``Ask`` says."""
        reader, writer = (
            self._idle.pop() if self._idle else await asyncio.open_connection(*self._address)
        )
        question = {
            "model": "pyengine-demo",
            "prompt": "Go on",
            "max_tokens": tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": stream,
        }
        body = json.dumps(question).encode()
        head = f"POST /v1/completions HTTP/1.1\r\nhost: bench\r\ncontent-length: {len(body)}\r\n"
        writer.write(head.encode() + b"content-type: application/json\r\n\r\n" + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 200"), answer
        if found := re.search(rb"content-length: (\d+)", answer):
            await reader.readexactly(int(found[1]))
        else:
            await reader.readuntil(b"\r\n0\r\n\r\n")
        self._idle.append((reader, writer))

    def close(self) -> None:
        """Close the connections."""
        for _, writer in self._idle:
            writer.close()


async def served(command: list[str]) -> Figures:
    """A server that prints its address once it is ready, in processes of its own."""
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)  # noqa: ASYNC220
    try:
        assert server.stdout is not None
        address = None
        while address is None and (line := await asyncio.to_thread(server.stdout.readline)):
            address = re.search(r"ready: .*http://([\d.]+):(\d+)", line)
        assert address is not None, "the server did not come up"
        client = Client(address[1], int(address[2]))
        figures = await measure(client.ask, family(server.pid))
        client.close()
        return figures
    finally:
        server.terminate()
        server.communicate()


def floor() -> None:
    """Serve constants by granian, as pyengine serves: the child of this bench."""
    import uvloop

    from pyengine.http.rsgi import HTTPProtocol, Scope
    from pyengine.http.serving.granian_server import GranianServer
    from pyengine.http.serving.sockets import listen, url_of

    chunk = b'data: {"choices":[{"index":0,"text":" constant","finish_reason":null}]}\n\n'

    class Constant:
        """Shaped as pyengine's application."""

        def __init__(self) -> None:
            from pyengine.http.limits import Limits

            self.limits = Limits()

        async def __rsgi__(self, scope: Scope, proto: HTTPProtocol) -> None:
            question = json.loads(await proto())
            if not question["stream"]:
                proto.response_bytes(200, [("content-type", "application/json")], chunk)
                return
            transport = proto.response_stream(200, [("content-type", "text/event-stream")])
            for _ in range(question["max_tokens"]):
                await transport.send_bytes(chunk)

    async def serve() -> None:
        listener = listen("127.0.0.1", 0, 2048)
        print(f"ready: {url_of(listener, '127.0.0.1')}", flush=True)
        await GranianServer(Constant(), listener, 8192).serve()

    uvloop.run(serve())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--step-ms", type=float, default=1.0)
    parser.add_argument("--floor", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.floor:
        floor()
        return
    step = str(arguments.step_ms)
    serve = [
        *PYENGINE,
        "serve",
        "--port",
        "0",
        "--device",
        "simulated",
        "--simulated-step-ms",
        step,
    ]
    figures = {
        "library, thread": asyncio.run(library("thread", arguments.step_ms)),
        "library, process": asyncio.run(library("process", arguments.step_ms)),
        "serve, thread": asyncio.run(served([*serve, "--placement", "thread"])),
        "serve, process": asyncio.run(served(serve)),
        "serve, 2 workers": asyncio.run(served([*serve, "--workers", "2"])),
        "floor: granian": asyncio.run(served([sys.executable, __file__, "--floor"])),
    }
    rounded = {
        name: {key: round(value, 1) for key, value in row.items()} for name, row in figures.items()
    }
    if write_json({"step_ms": arguments.step_ms, **rounded}, arguments.json):
        print(f"{'us':<18}{'latency':>12}{'cpu/request':>14}{'cpu/token':>12}")
        for name, row in figures.items():
            print(
                f"{name:<18}{row['latency_us']:12.0f}{row['cpu_us_request']:14.0f}"
                f"{row['cpu_us_token']:12.1f}"
            )
        base = figures["serve, thread"]["cpu_us_request"]
        ratio = figures["serve, process"]["cpu_us_request"] / base
        print(
            f"a process of its own for the engine costs {ratio:.2f} times a thread's CPU a request"
        )


if __name__ == "__main__":
    main()

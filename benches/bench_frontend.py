"""The frontend's CPU a streamed chunk: one HTTP worker beside a bare granian that sends the same.

Both write one chunk of the same size to each of ``--streams`` streams every ``--step-ms``; the load
is a process of its own that only counts. The server's engine is the simulated device. Each figure
is the CPU time of the process that serves, user and system, over the chunks that clients counted
meanwhile; of the server it is divided by stage, as ``pyengine profile --attach`` has them.

    python benches/bench_frontend.py [--streams 64] [--step-ms 2] [--seconds 4] [--json PATH]
"""

import argparse
import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import uvloop

from benches.endurance.servers import processes, served
from benches.figures import json_option, write_json
from pyengine.http.rsgi import ProtocolClosed

MODEL = "pyengine-demo"
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Who are you?"}]}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": {"type": "object"}}}
BODIES: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", {"prompt": "Once upon a time"}),
    "chat": ("/v1/chat/completions", CHAT),
    # Its text goes through the parser of calls.
    "tools": ("/v1/chat/completions", CHAT | {"tools": [TOOL]}),
}
RULES = {"model": MODEL, "stream": True, "ignore_eos": True, "max_tokens": 1500}
CHUNK = (
    b'data: {"id":"cmpl-0123456789abcdef00000001","object":"text_completion","created":1780000000,'
    b'"model":"pyengine-demo","choices":[{"index":0,"text":" word","logprobs":null,'
    b'"finish_reason":null}]}\n\n'
)
Figures = dict[str, Any]


class Stream(asyncio.Protocol):
    """A client that counts the events of its stream, and asks again at its end."""

    counted = 0

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Ask."""
        self._transport = transport
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Count."""
        Stream.counted += data.count(b"data: ")
        if b"[DONE]" in data:
            self._transport.write(self._request)


async def count(port: int, path: str, body: bytes, streams: int, seconds: float) -> None:
    """Open the streams, and print how many events came in each round until standard input ends."""
    head = f"POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    request = f"{head}content-type: application/json\r\n\r\n".encode() + body
    loop = asyncio.get_running_loop()
    for _ in range(streams):
        await loop.create_connection(lambda: Stream(request), "127.0.0.1", port)
    await asyncio.sleep(1)  # all have begun
    before, begun = Stream.counted, time.perf_counter()
    print("begun", flush=True)
    await asyncio.sleep(seconds)
    print(Stream.counted - before, time.perf_counter() - begun, flush=True)


def cpu_seconds(pid: int) -> float:
    """User and system time of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def stages(port: int) -> dict[str, float]:
    """Seconds of the frontend by stage, since the server's start."""
    text = urlopen(f"http://127.0.0.1:{port}/metrics").read().decode()
    line = r'pyengine_stage_seconds_total\{.*stage="(\w+)",track="frontend"\} (\S+)'
    spans: dict[str, float] = defaultdict(float)
    for name, value in re.findall(line, text):  # exposed or not
        spans[name] += float(value)
    return spans


def load(pid: int, port: int, path: str, body: bytes, options: argparse.Namespace) -> Figures:
    """Chunks a second that a server passes on, and its CPU for each of them."""
    command = [sys.executable, "-m", "benches.bench_frontend", "--count", str(port), path]
    sizes = ["--streams", str(options.streams), "--seconds", str(options.seconds)]
    with subprocess.Popen(
        [*command, *sizes], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        client.stdin.write(body)
        client.stdin.close()
        assert client.stdout.readline() == b"begun\n"
        begun = cpu_seconds(pid)
        chunks, seconds = map(float, client.stdout.readline().split())
        cpu = cpu_seconds(pid) - begun
    return {"passed": chunks, "chunks_per_s": chunks / seconds, "cpu_us_chunk": 1e6 * cpu / chunks}


@contextmanager
def bare(step_ms: float) -> Iterator[tuple[int, int]]:
    """A granian without anything: its port and process id."""
    command = [sys.executable, "-m", "benches.bench_frontend", "--bare", str(step_ms)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        process.terminate()


async def serve_bare(step_s: float) -> None:
    """Write a chunk to every stream each ``step_s``, until the process is ended."""
    from granian.constants import HTTPModes
    from granian.server.embed import Server

    from pyengine.http.serving.sockets import listen

    open_streams: list[Any] = []

    async def app(scope: Any, proto: Any) -> None:
        await proto()
        open_streams.append(proto.response_stream(200, [("content-type", "text/event-stream")]))
        await asyncio.get_running_loop().create_future()

    async def step() -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            for stream in open_streams:
                with suppress(ProtocolClosed):  # the clients leave before the server
                    await stream.send_bytes(CHUNK)
            due += step_s
            await asyncio.sleep(due - loop.time())

    probe = listen("127.0.0.1", 0, 16)
    port = probe.getsockname()[1]
    probe.close()
    server = Server(app, port=port, http=HTTPModes.http1, websockets=False, log_enabled=False)
    serving = asyncio.create_task(server.serve())
    while True:
        try:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            await asyncio.sleep(0.01)
        else:
            break
    writer.close()
    print(port, flush=True)
    await asyncio.gather(serving, step())


def bench(options: argparse.Namespace) -> Figures:
    """The floor, and the server by kind of answer."""
    figures: Figures = {}
    with bare(options.step_ms) as (port, pid):
        floor = load(pid, port, "/", b"{}", options)
    del floor["passed"]
    figures["bare granian"] = floor
    device = ("--device", "simulated", "--simulated-step-ms", str(options.step_ms))
    with served("--mode", "server", *device) as (url, server):
        port = int(url.rpartition(":")[2])
        [worker] = [pid for name, pid in processes(server).items() if name != "engine"]
        for name, (path, body) in BODIES.items():
            before = stages(port)
            figures[name] = load(worker, port, path, json.dumps(body | RULES).encode(), options)
            passed = figures[name].pop("passed")
            figures[name]["stages_us_chunk"] = {
                stage: 1e6 * (seconds - before.get(stage, 0)) / passed
                for stage, seconds in stages(port).items()
            }
    return figures


def show(figures: Figures) -> None:
    """Print the figures, each beside the floor."""
    floor = figures["bare granian"]["cpu_us_chunk"]
    for name, found in figures.items():
        cost = found["cpu_us_chunk"]
        print(f"{name:14} {found['chunks_per_s']:8,.0f} chunks/s  ", end="")
        print(f"{cost:6.2f} us of CPU a chunk, {cost / floor:.1f} x the floor")
        for stage, spent in found.get("stages_us_chunk", {}).items():
            print(f"{'':14} {stage:14} {spent:6.2f} us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--step-ms", type=float, default=2)
    parser.add_argument("--seconds", type=float, default=4)
    parser.add_argument("--count", nargs=2, metavar=("PORT", "PATH"), help=argparse.SUPPRESS)
    parser.add_argument("--bare", type=float, metavar="STEP_MS", help=argparse.SUPPRESS)
    json_option(parser)
    options = parser.parse_args()
    if options.bare is not None:
        uvloop.run(serve_bare(options.bare / 1e3))
    elif options.count is not None:
        port, path = options.count
        body = sys.stdin.buffer.read()
        uvloop.run(count(int(port), path, body, options.streams, options.seconds))
    else:
        figures = bench(options)
        if write_json(figures, options.json):
            show(figures)


if __name__ == "__main__":
    main()

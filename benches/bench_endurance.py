"""Endurance of ``pyengine serve``: memory, errors and latencies under mixed load, deaths, overload.

``mixed`` sends requests of all kinds (completions and chats, whole and streamed, ``n=2``, schemas,
tools, dropped streams, a connection each) from many clients, and prints the memory that each
process has of its own over time, and what it gained after the warm-up; beside it what it shares:
files, and rings whose pages become resident where messages come for the first time. ``kills`` kills
the engine three times under 200 streams, and compares every stream with one that was not disturbed;
``stop`` stops it for ten seconds. ``overload`` sends 10,000 requests from several processes, each
on a connection of its own, and prints how they were answered and how long a refusal took; the floor
is ``/health`` asked for in the same way. ``sustained``, they come for ten seconds at twice the rate
that the engine can take; ``burst``, all at once, to a server that can hold half of them.

    python benches/bench_endurance.py [--seconds 20 | --requests 50000] [--clients 24] [--simulated]
    python benches/bench_endurance.py --only kills
    python benches/bench_endurance.py --only stop
    python benches/bench_endurance.py --only overload
"""

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import uvloop

from benches.figures import json_option, write_json

MODEL = "pyengine-demo"
MIB = 1 << 20
STOP_S = 10
QUIET = ("--log-level", "warning")
WARM_UP = 0.2  # of the run
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "meet", "parameters": SCHEMA}}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 32}
TEXT = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16}
FORMAT = {"type": "json_schema", "json_schema": {"name": "person", "schema": SCHEMA}}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": ("/v1/completions", TEXT),
    "stream": ("/v1/completions", TEXT | {"stream": True}),
    "chat": ("/v1/chat/completions", CHAT),
    "chat stream": ("/v1/chat/completions", CHAT | {"stream": True}),
    "n=2": ("/v1/completions", TEXT | {"n": 2}),
    "schema": ("/v1/chat/completions", CHAT | {"response_format": FORMAT}),
    "tool": ("/v1/chat/completions", CHAT | {"tools": [TOOL], "tool_choice": "required"}),
    "abort": ("/v1/completions", TEXT | {"stream": True, "max_tokens": 500}),
    "connection": ("/v1/completions", TEXT),
}


Disturb = Callable[[httpx.AsyncClient, int], Awaitable[None]]


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, int]]:
    """A server's URL and process id."""
    command = [sys.executable, "-m", "pyengine", "serve", "--port", "0", *QUIET, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = (re.match(r"ready: \S+ at (\S+)/v1", line) for line in process.stdout)
        url = next(filter(None, ready))[1]
        try:
            yield url, process.pid
        finally:
            process.terminate()
            process.stdout.read()


def processes(server: int) -> dict[str, int]:
    """The server's processes by name: the supervisor and what it has started."""
    found = {"supervisor": server}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server:
            kind = "engine" if "engine_main" in command else f"worker {len(found)}"
            found[kind] = int(entry.name)
    return found


def resident_mib(pid: int) -> tuple[float, float]:
    """The resident memory that a process has of its own, and what it shares with others."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    page_mib = os.sysconf("SC_PAGESIZE") / MIB
    return (resident - shared) * page_mib, shared * page_mib


@dataclass
class Load:
    """What clients have done so far.

    Attributes:
        done: Requests that were answered, or dropped on purpose.
        errors: Those that were not answered as they should be, by what happened.
        seconds: Latencies by kind, in the order of the answers.
        memory: By process, samples of (requests done, MiB of its own).
        shared: By process, the last sample of what it shares: files, and rings of a fixed size.
    """

    done: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))
    shared: dict[str, float] = field(default_factory=dict)

    def gains(self) -> dict[str, float]:
        """MiB that each process gained after the warm-up: the ends' medians of five samples."""
        gained = {}
        for name, samples in self.memory.items():
            warm = [mib for done, mib in samples if done >= WARM_UP * self.done]
            gained[name] = median(warm[-5:]) - median(warm[:5])
        return gained


async def ask(http: httpx.AsyncClient, kind: str, number: int) -> None:
    """Send a request of ``kind`` and check its answer."""
    path, body = KINDS[kind]
    if "prompt" in body and number % 2:
        body = body | {"prompt": f"{number} {body['prompt']}"}
    if not body.get("stream"):
        answer = (await http.post(path, json=body)).raise_for_status().json()
        if kind == "schema" and answer["choices"][0]["finish_reason"] == "stop":
            assert json.loads(answer["choices"][0]["message"]["content"]).keys() == {"name", "age"}
        assert len(answer["choices"]) == body.get("n", 1)
        return
    async with http.stream("POST", path, json=body) as answer:
        answer.raise_for_status()
        lines = answer.aiter_lines()
        if kind == "abort":
            await anext(lines)
            return
        last = [line async for line in lines if line][-1]
        assert last == "data: [DONE]", last


async def mixed(
    url: str, server: int, *, clients: int, seconds: float, requests: int | None, every_s: float
) -> Load:
    """Load of all kinds until time or requests are up; memory is read every so often."""
    load, numbers = Load(), count()
    until = time.monotonic() + seconds
    kinds = list(KINDS)

    def goes_on() -> bool:
        return time.monotonic() < until if requests is None else load.done < requests

    async def client(http: httpx.AsyncClient, single: httpx.AsyncClient) -> None:
        while goes_on():
            number = next(numbers)
            kind = kinds[number % len(kinds)]
            begun = time.perf_counter()
            try:
                await ask(single if kind == "connection" else http, kind, number)
            except (httpx.HTTPError, AssertionError, ValueError) as error:
                load.errors[f"{kind}: {type(error).__name__} {error}"[:120]] += 1
            load.seconds[kind].append(time.perf_counter() - begun)
            load.done += 1

    async def watch() -> None:
        names = processes(server)
        while True:
            for name, pid in names.items():
                own, load.shared[name] = resident_mib(pid)
                load.memory[name].append((load.done, own))
            await asyncio.sleep(every_s)

    alone = httpx.Limits(max_keepalive_connections=0)
    watching = asyncio.create_task(watch())
    async with (
        httpx.AsyncClient(base_url=url, timeout=120) as http,
        httpx.AsyncClient(base_url=url, timeout=120, limits=alone) as single,
    ):
        await asyncio.gather(*(client(http, single) for _ in range(clients)))
    watching.cancel()
    return load


def show(load: Load) -> None:
    """Print the run."""
    print(f"{load.done} requests, {load.errors.total()} errors")
    for error, often in load.errors.most_common(5):
        print(f"  {often} x {error}")
    print(f"{'MiB':14} {'first':>8} {'warm':>8} {'last':>8} {'gained':>8} {'shared':>8}")
    gains = load.gains()
    for name, samples in load.memory.items():
        first, last = samples[0][1], samples[-1][1]
        warm, shared = last - gains[name], load.shared[name]
        print(f"{name:14} {first:8.1f} {warm:8.1f} {last:8.1f} {gains[name]:+8.1f} {shared:8.1f}")
    print(f"{'ms':14} {'p50 first fifth':>16} {'last fifth':>12} {'p99':>8} {'p99 last':>9}")
    for kind, times in load.seconds.items():
        fifth = max(2, len(times) // 5)
        parts = [[1000 * each for each in part] for part in (times[:fifth], times[-fifth:])]
        middle = [median(part) for part in parts]
        high = [quantiles(part, n=100)[98] for part in parts]
        print(f"{kind:14} {middle[0]:16.0f} {middle[1]:12.0f} {high[0]:8.0f} {high[1]:9.0f}")


async def kill(http: httpx.AsyncClient, server: int) -> None:
    """Kill the engine, and wait for the next one."""
    killed = processes(server)["engine"]
    os.kill(killed, signal.SIGKILL)
    while processes(server).get("engine", killed) == killed:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110
        await asyncio.sleep(0.05)


async def stop(http: httpx.AsyncClient, server: int) -> None:
    """Stop the engine for a while: ``/ready`` says so meanwhile."""
    engine = processes(server)["engine"]
    os.kill(engine, signal.SIGSTOP)
    begun = time.monotonic()
    while (await http.get("/ready")).status_code != 503:  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    print(f"/ready says 503 after {time.monotonic() - begun:.1f} s")
    await asyncio.sleep(STOP_S - (time.monotonic() - begun))
    os.kill(engine, signal.SIGCONT)


async def disturbed(
    url: str, server: int, streams: int, disturb: Disturb, times: int
) -> Counter[str]:
    """Disturb the engine under streams; they end ``equal``, as ``other text``, or by an error."""
    body = TEXT | {"max_tokens": 200, "temperature": 0.8, "stream": True, "ignore_eos": True}

    async def text(http: httpx.AsyncClient, seed: int) -> str:
        read, whole = "", False
        async with http.stream("POST", "/v1/completions", json=body | {"seed": seed}) as answer:
            async for line in answer.aiter_lines():
                whole |= line == "data: [DONE]"
                if line.startswith("data: {"):
                    event = json.loads(line[6:])
                    if "error" in event:
                        return f"error: {event['error']['message']}"
                    read += event["choices"][0]["text"]
        return read if whole else "error: cut off"

    async with all_at_once(url) as http:
        undisturbed = await asyncio.gather(*(text(http, seed) for seed in range(streams)))
        running = [asyncio.create_task(text(http, seed)) for seed in range(streams)]
        for _ in range(times):
            await asyncio.sleep(1)
            await disturb(http, server)
        ends: Counter[str] = Counter()
        for before, after in zip(undisturbed, await asyncio.gather(*running), strict=True):
            failed = after if after.startswith("error") else "other text"
            ends["equal" if before == after else failed] += 1
    return ends


class Single(asyncio.Protocol):
    """A connection with one request on it: its status, and seconds from sending it to its end."""

    def __init__(self, request: bytes, ended: asyncio.Future[tuple[str, float]]) -> None:
        self._request, self._ended = request, ended
        self._read = b""
        self._sent = 0.0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        sender: Any = transport
        sender.write(self._request)
        self._sent = time.perf_counter()

    def data_received(self, data: bytes) -> None:
        """Keep the answer."""
        self._read += data

    def connection_lost(self, _: Exception | None) -> None:
        """The answer has ended."""
        self._ended.set_result(
            (self._read[9:12].decode() or "lost", time.perf_counter() - self._sent)
        )


async def send_all(
    url: str, path: str, body: bytes, requests: int, over_s: float, at: float
) -> list[tuple[str, float]]:
    """So many requests over a time, on a connection each, from a moment of the clock on."""
    host, port = url.removeprefix("http://").split(":")
    fields = f"host: {host}\r\ncontent-length: {len(body)}\r\ncontent-type: application/json\r\n"
    head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\n{fields}connection: close\r\n\r\n"
    request = head.encode() + body
    loop = asyncio.get_running_loop()

    async def timed(number: int) -> tuple[str, float]:
        await asyncio.sleep(at + over_s * number / requests - time.monotonic())
        ended: asyncio.Future[tuple[str, float]] = loop.create_future()
        try:
            await loop.create_connection(lambda: Single(request, ended), host, int(port))
        except OSError as error:
            return type(error).__name__, 0.0
        return await ended

    return await asyncio.gather(*map(timed, range(requests)))


def send(*arguments: Any) -> list[tuple[str, float]]:
    """As :func:`send_all`, in a process of its own."""
    return uvloop.run(send_all(*arguments))


def overload(url: str, requests: int, over_s: float, clients: int) -> dict[str, Any]:
    """So many requests from several processes: their ends, and the times of the refused.

    One client process alone takes longer to send and read them than the server to refuse them.
    """
    with ProcessPoolExecutor(clients, mp_context=get_context("spawn")) as pool:

        def all_of(path: str, body: bytes) -> list[tuple[str, float]]:
            load = url, path, body, requests // clients, over_s, time.monotonic() + 2
            parts = [pool.submit(send, *load) for _ in range(clients)]
            return [answer for part in parts for answer in part.result()]

        floor = all_of("/health", b"")
        answers = all_of("/v1/completions", json.dumps(TEXT | {"ignore_eos": True}).encode())
    refused = sorted(seconds for status, seconds in answers if status in ("429", "503"))
    return {
        "answers": Counter(status for status, _ in answers),
        "refused_p50_s": median(refused or [0]),
        "refused_max_s": max(refused, default=0),
        "health_p50_s": median(seconds for _, seconds in floor),
        "health_max_s": max(seconds for _, seconds in floor),
    }


@asynccontextmanager
async def all_at_once(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens a connection for every request that runs."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        yield http


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=["mixed", "kills", "stop", "overload"])
    parser.add_argument("--seconds", type=float, default=20, help="how long the mixed load lasts")
    parser.add_argument("--requests", type=int, help="end the mixed load after so many instead")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--simulated", action="store_true", help="the mixed load without a model")
    parser.add_argument("--streams", type=int, default=200, help="streams under the kills")
    parser.add_argument("--burst", type=int, default=10_000, help="requests of the overload")
    parser.add_argument("--workers", type=int, default=2)
    json_option(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    two = ("--workers", str(options.workers), "--mode", "server")
    if options.only in (None, "mixed"):
        device = ("--device", "simulated", "--simulated-step-ms", "0.2")
        with served(*two, *(device if options.simulated else ())) as (url, server):
            every_s = max(0.2, options.seconds / 100)
            how = {"clients": options.clients, "requests": options.requests, "every_s": every_s}
            load = asyncio.run(mixed(url, server, seconds=options.seconds, **how))
        show(load)
        figures["mixed"] = {
            "requests": load.done,
            "errors": load.errors,
            "gained_mib": load.gains(),
            "memory": load.memory,
            "shared_mib": load.shared,
        }
    ten_ms = ("--device", "simulated", "--simulated-step-ms", "10")
    for name, disturb, times in (("kills", kill, 3), ("stop", stop, 1)):
        if options.only in (None, name):
            with served(*two, *ten_ms) as (url, server):
                ends = asyncio.run(disturbed(url, server, options.streams, disturb, times))
            figures[name] = ends
            print(f"{options.streams} streams, {times} x {disturb.__name__}: {dict(ends)}")
    if options.only in (None, "overload"):
        # 256 sequences of 16 steps of 32 ms are 500 requests a second.
        paced = ("--simulated-step-ms", "32", "--max-waiting", "256")
        half = ("--max-waiting", str(options.burst // 2 - 256))
        for name, over_s, limits in (
            ("sustained", options.burst / 1000, paced),
            ("burst", 0, half),
        ):
            with served(*two, "--device", "simulated", *limits) as (url, _):
                figures[name] = overload(url, options.burst, over_s, 2)
            print(f"{options.burst} requests at twice the capacity, {name}: {figures[name]}")
    write_json(figures, options.json)


if __name__ == "__main__":
    main()

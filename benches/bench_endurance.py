"""Endurance of ``pyengine serve``: memory, errors and latencies under mixed load, deaths, overload.

``mixed`` sends requests of all kinds (completions and chats, whole and streamed, ``n=2``, schemas,
tools, dropped streams, a connection each) from many clients, and prints the resident memory of each
process over time and what it gained after the warm-up. ``kills`` kills the engine three times under
200 streams, and compares every stream with one that was not disturbed. ``overload`` sends 10,000
requests at once to a server that can hold half of them, and prints how they were answered and how
long a refusal took; the floor is ``/health`` asked for in the same way.

    python benches/bench_endurance.py [--seconds 20 | --requests 50000] [--clients 24] [--json PATH]
    python benches/bench_endurance.py --only kills
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
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import httpx
import uvloop

from benches.figures import json_option, write_json

MODEL = "pyengine-demo"
MIB = 1 << 20
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


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, int]]:
    """A server's URL and process id."""
    command = [sys.executable, "-m", "pyengine", "serve", "--port", "0", *arguments]
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


def resident_mib(pid: int) -> float:
    """The resident memory of a process."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / MIB


@dataclass
class Load:
    """What clients have done so far.

    Attributes:
        done: Requests that were answered, or dropped on purpose.
        errors: Those that were not answered as they should be, by what happened.
        seconds: Latencies by kind, in the order of the answers.
        memory: By process, samples of (requests done, resident MiB).
    """

    done: int = 0
    errors: Counter[str] = field(default_factory=Counter)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    memory: dict[str, list[tuple[int, float]]] = field(default_factory=lambda: defaultdict(list))

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
                load.memory[name].append((load.done, resident_mib(pid)))
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
    print(f"{'resident MiB':14} {'first':>8} {'warm':>8} {'last':>8} {'gained':>8}")
    gains = load.gains()
    for name, samples in load.memory.items():
        first, last = samples[0][1], samples[-1][1]
        print(f"{name:14} {first:8.1f} {last - gains[name]:8.1f} {last:8.1f} {gains[name]:+8.1f}")
    print(f"{'ms':14} {'p50 first fifth':>16} {'last fifth':>12} {'p99':>8} {'p99 last':>9}")
    for kind, times in load.seconds.items():
        fifth = max(2, len(times) // 5)
        parts = [[1000 * each for each in part] for part in (times[:fifth], times[-fifth:])]
        middle = [median(part) for part in parts]
        high = [quantiles(part, n=100)[98] for part in parts]
        print(f"{kind:14} {middle[0]:16.0f} {middle[1]:12.0f} {high[0]:8.0f} {high[1]:9.0f}")


async def kills(url: str, server: int, streams: int, deaths: int) -> Counter[str]:
    """Kill the engine under streams; how they ended: ``equal``, ``other text``, or an error."""
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
        for _ in range(deaths):
            killed = processes(server)["engine"]
            await asyncio.sleep(1)
            os.kill(killed, signal.SIGKILL)
            while processes(server).get("engine", killed) == killed:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            while (await http.get("/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        ends: Counter[str] = Counter()
        for before, after in zip(undisturbed, await asyncio.gather(*running), strict=True):
            failed = after if after.startswith("error") else "other text"
            ends["equal" if before == after else failed] += 1
    return ends


async def overload(url: str, requests: int) -> dict[str, Any]:
    """So many requests at once, on a connection each: their ends, and the times of the refused."""
    host, port = url.removeprefix("http://").split(":")

    async def timed(path: str, body: bytes) -> tuple[str, float]:
        begun = time.perf_counter()
        method = "POST" if body else "GET"
        try:
            reader, writer = await asyncio.open_connection(host, int(port))
            head = f"{method} {path} HTTP/1.1\r\nhost: {host}\r\ncontent-length: {len(body)}\r\n"
            fields = "content-type: application/json\r\nconnection: close\r\n\r\n"
            writer.write(f"{head}{fields}".encode() + body)
            answer = await reader.read()
            writer.close()
        except OSError as error:
            return type(error).__name__, time.perf_counter() - begun
        return answer[9:12].decode() or "lost", time.perf_counter() - begun

    async def all_of(path: str, body: bytes) -> list[tuple[str, float]]:
        return await asyncio.gather(*(timed(path, body) for _ in range(requests)))

    floor = await all_of("/health", b"")
    text = json.dumps(TEXT | {"max_tokens": 32, "ignore_eos": True}).encode()
    answers = await all_of("/v1/completions", text)
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
    parser.add_argument("--only", choices=["mixed", "kills", "overload"])
    parser.add_argument("--seconds", type=float, default=20, help="how long the mixed load lasts")
    parser.add_argument("--requests", type=int, help="end the mixed load after so many instead")
    parser.add_argument("--clients", type=int, default=24)
    parser.add_argument("--streams", type=int, default=200, help="streams under the kills")
    parser.add_argument("--burst", type=int, default=10_000, help="requests of the overload")
    parser.add_argument("--workers", type=int, default=2)
    json_option(parser)
    options = parser.parse_args()
    figures: dict[str, Any] = {}
    two = ("--workers", str(options.workers), "--mode", "server")
    if options.only in (None, "mixed"):
        with served(*two) as (url, server):
            every_s = max(0.2, options.seconds / 100)
            how = {"clients": options.clients, "requests": options.requests, "every_s": every_s}
            load = asyncio.run(mixed(url, server, seconds=options.seconds, **how))
        show(load)
        figures["mixed"] = {
            "requests": load.done,
            "errors": load.errors,
            "gained_mib": load.gains(),
            "memory": load.memory,
        }
    if options.only in (None, "kills"):
        with served(*two, "--device", "simulated", "--simulated-step-ms", "10") as (url, server):
            figures["kills"] = asyncio.run(kills(url, server, options.streams, 3))
        print(f"{options.streams} streams, three kills: {dict(figures['kills'])}")
    if options.only in (None, "overload"):
        waiting = options.burst // 2 - 256
        with served(*two, "--device", "simulated", "--max-waiting", str(waiting)) as (url, _):
            figures["overload"] = uvloop.run(overload(url, options.burst))
        print(f"{options.burst} requests at twice the capacity: {figures['overload']}")
    write_json(figures, options.json)


if __name__ == "__main__":
    main()

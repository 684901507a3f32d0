"""What several engines pass together, and what the way to them costs: direct, by ``smg``, by Ray.

On simulated devices, whose steps take time and no CPU, so that two replicas have two devices on any
machine. ``--quick`` is the router alone, in 50 seconds:

``throughput_ratio`` is tokens a second of two replicas over those of one engine without a router,
both with more clients than they have places; ``cached_share_ratio`` is the share of prompt tokens
that were cached, two over one, of 200 requests over 8 system prompts; ``failed_requests`` counts
those of 200 requests that fail after one of two replicas was killed while idle.

Without ``--quick`` there are also, for each way, the median TTFT of a request that is alone, tokens
a second of 32 streams, and the CPU time of all servers' processes for a request of 16 tokens.

    python benches/bench_scale_out.py [--quick] [--json -]
"""

import argparse
import asyncio
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx

from benches.bench_placement import cpu_seconds, family
from benches.figures import json_option, write_json
from tests.ray.cluster import cluster

PYENGINE = (sys.executable, "-m", "pyengine")
DEVICE = ("--device", "simulated", "--simulated-step-ms", "20", "--max-sequences", "8")
CLIENTS = 48
WARM_UP_S, WINDOW_S = 1.0, 5.0
REQUESTS, SYSTEM_PROMPTS = 200, 8
ALONE, STREAMS = 30, 32
IDLE_S = 0.1  # until no step is in flight any more
MODEL = "pyengine-demo"

Figures = dict[str, Any]


class Served:
    """Servers that have said that they are ready.

    Attributes:
        url: Where requests go.
        metrics: Where the engines' metrics are.
        process: The process that started all others.
        lines: What it has printed.
    """

    def __init__(self, process: "subprocess.Popen[str]", lines: list[str]) -> None:
        text = "".join(lines)
        found = re.search(r"ready: .*(http://[\d.]+:\d+)", text)
        assert found is not None, f"the server did not come up:\n{text}"
        self.url = found[1]
        several = re.search(r"metrics +(\S+)", text)
        self.metrics = several[1] if several else f"{self.url}/metrics"
        self.process = process
        self.lines = lines

    async def total(self, client: httpx.AsyncClient, metric: str) -> float:
        """The sum of a metric's samples over all replicas."""
        text = (await client.get(self.metrics)).text
        return sum(map(float, re.findall(rf"^{metric}\{{.*\}} (\S+)$", text, re.MULTILINE)))


@contextmanager
def started(*command: str) -> Iterator["subprocess.Popen[str]"]:
    """A process that is asked to end at the end."""
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(10)
        process.kill()
        process.communicate()


def ready(process: "subprocess.Popen[str]") -> Served:
    """Wait until the servers are."""
    assert process.stdout is not None
    lines = []
    for line in process.stdout:
        lines.append(line)
        if line.startswith("ready:"):
            break
    return Served(process, lines)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a server."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        yield client


async def tokens_per_second(server: Served) -> float:
    """Tokens that the engines generate in a second, with more clients than places."""
    draw = random.Random(0)
    async with connected(server.url) as client:

        async def ask(number: int) -> None:
            turn = 0
            while True:
                turn += 1
                body = {
                    "model": MODEL,
                    "prompt": f"{number}, {turn}: go on",
                    "max_tokens": draw.randint(16, 48),
                    "ignore_eos": True,
                }
                (await client.post("/v1/completions", json=body)).raise_for_status()

        clients = [asyncio.create_task(ask(number)) for number in range(CLIENTS)]
        await asyncio.sleep(WARM_UP_S)
        begin, before = time.perf_counter(), await server.total(client, "pyengine_steps_total")
        tokens = await server.total(client, "pyengine_generation_tokens_total")
        await asyncio.sleep(WINDOW_S)
        tokens = await server.total(client, "pyengine_generation_tokens_total") - tokens
        seconds = time.perf_counter() - begin
        assert await server.total(client, "pyengine_steps_total") > before
        for each in clients:
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
    return tokens / seconds


async def questions(url: str, topic: str) -> tuple[float, int]:
    """The cached share of prompt tokens of requests over some system prompts; how many failed."""
    prompt_tokens = cached = failed = 0
    numbers = iter(range(REQUESTS))
    async with connected(url) as client:

        async def ask() -> None:
            nonlocal prompt_tokens, cached, failed
            for number in numbers:
                kind = number % SYSTEM_PROMPTS
                system = f"{topic} {kind}. " + f"Rule {kind}: be brief. " * 60
                body = {
                    "model": MODEL,
                    "max_tokens": 2,
                    "messages": [
                        {"role": "system", "content": system},
                        {"role": "user", "content": f"Question {number}"},
                    ],
                }
                try:
                    answer = await client.post("/v1/chat/completions", json=body)
                except httpx.HTTPError:
                    failed += 1
                    continue
                if answer.status_code != httpx.codes.OK:
                    failed += 1
                    continue
                usage = answer.json()["usage"]
                prompt_tokens += usage["prompt_tokens"]
                cached += usage["prompt_tokens_details"]["cached_tokens"]

        await asyncio.gather(*(ask() for _ in range(8)))
    return cached / max(prompt_tokens, 1), failed


def kill_a_replica(server: Served) -> None:
    """Kill the first replica's server and its engine."""
    for line in server.lines:
        if found := re.search(r"replica \d+: ready, .*http://[\d.]+:(\d+)", line):
            for pid in family(server.process.pid):
                if listens(pid, int(found[1])):
                    os.kill(pid, signal.SIGKILL)
                    return
    raise AssertionError("no replica was found")


def listens(pid: int, port: int) -> bool:
    """Whether a process has the socket that listens at ``port`` of the loopback interface."""
    entry = re.compile(rf" *\d+: 0100007F:{port:04X} \S+ 0A (?:\S+ +){{5}}(\d+)")
    entries = map(entry.match, Path("/proc/net/tcp").read_text().splitlines())
    sockets = {f"socket:[{found[1]}]" for found in entries if found}
    with suppress(OSError):
        return any(str(link.readlink()) in sockets for link in Path(f"/proc/{pid}/fd").iterdir())
    return False


async def cost(url: str, pids: list[int]) -> Figures:
    """TTFT of a request that is alone, tokens a second of many streams, CPU time of a request."""
    async with connected(url) as client:

        async def stream(tokens: int, number: int) -> float:
            body = {
                "model": MODEL,
                "prompt": f"{number}: go on",
                "max_tokens": tokens,
                "ignore_eos": True,
                "stream": True,
            }
            begin, first = time.perf_counter(), 0.0
            async with client.stream("POST", "/v1/completions", json=body) as answer:
                answer.raise_for_status()
                async for _ in answer.aiter_lines():
                    first = first or time.perf_counter() - begin
            return first

        await asyncio.gather(*(stream(4, number) for number in range(STREAMS)))
        alone = []
        for number in range(ALONE):
            await asyncio.sleep(IDLE_S)
            alone.append(await stream(1, number))
        begin, cpu = time.perf_counter(), cpu_seconds(pids)
        await asyncio.gather(*(stream(16, number) for number in range(4 * STREAMS)))
        seconds, cpu = time.perf_counter() - begin, cpu_seconds(pids) - cpu
    return {
        "ttft_ms": median(alone) * 1e3,
        "tokens_per_s": 16 * 4 * STREAMS / seconds,
        "cpu_ms_request": cpu * 1e3 / (4 * STREAMS),
    }


async def bench(one: Served, two: Served, *, quick: bool) -> Figures:
    """All figures but those of Ray."""
    figures: Figures = {}
    passed = [await tokens_per_second(one), await tokens_per_second(two)]
    figures["tokens_per_s"] = {"one": passed[0], "two": passed[1]}
    figures["throughput_ratio"] = passed[1] / passed[0]
    (share, _), (shares, _) = [await questions(each.url, "Assistant") for each in (one, two)]
    figures["cached_share"] = {"one": share, "two": shares}
    figures["cached_share_ratio"] = shares / share
    if not quick:
        figures["ways"] = {
            name: await cost(each.url, family(each.process.pid))
            for name, each in (("direct", one), ("smg", two))
        }
    kill_a_replica(two)
    _, figures["failed_requests"] = await questions(two.url, "Survivor")
    return figures


def by_ray() -> Figures:
    """What a request costs by Ray Serve, with two replicas."""
    program = Path(__file__).parent.parent / "examples" / "ray_serve.py"
    with (
        cluster() as ray,
        started(sys.executable, str(program), "--address", ray.address, *DEVICE) as process,
    ):
        server = ready(process)
        return asyncio.run(cost(server.url, [*family(ray.pid), *family(process.pid)]))


def show(figures: Figures) -> None:
    """Print a table."""
    for name in ("throughput_ratio", "cached_share_ratio", "failed_requests"):
        print(f"{name:<20} {figures[name]:8.3f}")
    for name, each in figures.get("ways", {}).items():
        print(f"{name:<8} " + "   ".join(f"{key} {number:9.2f}" for key, number in each.items()))


def rounded(value: Any) -> Any:
    """Numbers of a tree with four digits."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    return float(f"{value:.4g}") if isinstance(value, float) else value


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--quick", action="store_true", help="the router alone, in 50 seconds")
    arguments = parser.parse_args()
    # No line a request: Ray's engines write none.
    command = (*PYENGINE, "serve", "--port", "0", "--log-level", "error", *DEVICE)
    with started(*command) as first, started(*command, "--replicas", "2") as second:
        figures = asyncio.run(bench(ready(first), ready(second), quick=arguments.quick))
    if not arguments.quick:
        figures["ways"]["ray"] = by_ray()
    if write_json(rounded(figures), arguments.json):
        show(figures)


if __name__ == "__main__":
    main()

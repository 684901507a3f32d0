"""Load of all kinds at once, and the memory that each process has meanwhile."""

import asyncio
import json
import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import count
from statistics import median, quantiles
from typing import Any

import httpx

from benches.endurance.servers import MODEL, TEXT, processes, resident_mib

WARM_UP = 0.2  # of the run
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "meet", "parameters": SCHEMA}}
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": "Who are you?"}], "max_tokens": 32}
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

"""Streams whose engine is killed or stopped: whether they end as undisturbed ones do."""

import asyncio
import json
import os
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import httpx

from benches.endurance.servers import TEXT, processes

STOP_S = 10
Disturb = Callable[[httpx.AsyncClient, int], Awaitable[None]]


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


@asynccontextmanager
async def all_at_once(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client that opens a connection for every request that runs."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=0)
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=limits) as http:
        yield http

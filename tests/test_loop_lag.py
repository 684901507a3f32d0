"""Preparing large requests keeps neither a service's loop nor the GIL from its other streams."""

import asyncio
import time
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.placement import PlacementName
from pyengine.telemetry.host import HostUse

TICK_S = 0.001
LONGEST_S = 0.02
TRIES = 3  # on a machine on which a thread may lose its core while it has the GIL
ONE = SamplingParams(max_tokens=1)


def conversation(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def large(kind: str) -> dict[str, Any]:
    """What ``chat`` is asked with."""
    if kind == "tokens":
        return {"messages": conversation(" ".join(f"word {n}" for n in range(16_000)))}
    if kind == "special":
        return {"messages": conversation("What is <|im_end|>? " * 20)}
    tool = {
        "type": "object",
        "properties": {f"field_{n}": {"type": "string", "maxLength": 20} for n in range(5)},
    }
    tools = [
        {"type": "function", "function": {"name": f"tool_{n}", "parameters": tool}}
        for n in range(300)
    ]
    return {"messages": conversation("Hi"), "tools": tools}


async def longest_lag(end: asyncio.Event) -> float:
    """The most by which this loop was late, without its thread's waits for a core, in seconds."""

    def without_core() -> float:
        return HostUse().with_caller("frontend").threads[0].waiting_ns * 1e-9

    longest = 0.0
    while not end.is_set():
        due, waited = time.perf_counter() + TICK_S, without_core()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - due - (without_core() - waited))
    return longest


async def lag_beside(kind: str, placement: PlacementName) -> float:
    """The lag of a loop with a stream while its engine, which is new, prepares a request."""
    settings: dict[str, Any] = {"device": "simulated", "simulated_step_ms": 4}
    async with AsyncEngine(**settings, max_context=1 << 17, placement=placement) as engine:

        async def read() -> None:
            async for _ in engine.generate([5, 6], SamplingParams(max_tokens=4000)):
                pass

        await engine.chat(conversation("Hi"), ONE)
        stream, end, asked = asyncio.create_task(read()), asyncio.Event(), large(kind)
        lag = asyncio.create_task(longest_lag(end))
        answer = await engine.chat(**asked, params=ONE)
        end.set()
        stream.cancel()
        await asyncio.gather(stream, return_exceptions=True)
        assert answer.usage.prompt_tokens > {"tokens": 40_000, "tools": 4, "special": 20}[kind]
        return await lag


@pytest.mark.slow
@pytest.mark.parametrize("placement", ["thread", "process"])
@pytest.mark.parametrize("kind", ["tokens", "tools", "special"])
async def test_other_streams_go_on(kind: str, placement: PlacementName) -> None:
    lags = []
    for _ in range(TRIES):
        lags.append(await lag_beside(kind, placement))
        if lags[-1] < LONGEST_S:
            return
    pytest.fail(f"the loop was late by {lags} s")

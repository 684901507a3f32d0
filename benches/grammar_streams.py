"""Streams of the engine beside compilations: what heavy grammars cost those who have none."""

import asyncio
import contextlib
import json
from time import perf_counter
from typing import Any

import numpy as np

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidRequestError, OverloadedError
from pyengine.grammar import Grammar, json_schema

STREAMS = 16
STEP_MS = 8.0
HEAVY = 40
SECONDS = 6.0
# More than are asked for in that time.
MADE = 400
STREAM = SamplingParams(temperature=0, max_tokens=2000, ignore_eos=True)
ANSWER = SamplingParams(seed=1, max_tokens=8)


def heavy(number: int) -> Grammar:
    """A schema that takes seconds, and no two alike: any half of many properties."""
    names = {f"property {number} {at}": {"type": "integer"} for at in range(1500)}
    return json_schema({"type": "object", "properties": names, "minProperties": 750})


class Streams:
    """The time between the tokens of all streams."""

    def __init__(self, engine: AsyncEngine) -> None:
        self.engine = engine
        self.gaps: list[float] = []
        self.over = False

    async def read(self, number: int) -> None:
        """Take the tokens of one stream, again and again."""
        while not self.over:
            last = None
            async for _ in self.engine.generate([number + 300] * 8, STREAM):
                now = perf_counter()
                if last is not None:
                    self.gaps.append(now - last)
                last = now
                if self.over:
                    return

    async def during(self, work: Any) -> list[float]:
        """The gaps while something is awaited."""
        before = len(self.gaps)
        await work
        return self.gaps[before:]


async def ask(engine: AsyncEngine, grammar: Grammar) -> None:
    with contextlib.suppress(InvalidRequestError, OverloadedError):
        await engine.generate("Go on", ANSWER, grammar=grammar)


async def ask_for(engine: AsyncEngine, seconds: float, grammars: list[Grammar]) -> None:
    """Keep forty heavy grammars under way for so long, or until there are no more."""
    until = perf_counter() + seconds

    async def one() -> None:
        while perf_counter() < until and grammars:
            await ask(engine, grammars.pop())

    await asyncio.gather(*(one() for _ in range(HEAVY)))


def spread(gaps: list[float]) -> dict[str, float]:
    values = np.array(gaps) * 1e3
    return {
        "mean_ms": round(float(values.mean()), 3),
        "p99_ms": round(float(np.percentile(values, 99)), 3),
    }


async def figures() -> dict[str, Any]:
    """Milliseconds between two tokens of a stream, alone and beside the compilations."""
    engine = AsyncEngine(
        device="simulated",
        simulated_step_ms=STEP_MS,
        mode="server",
        placement="process",
        grammar_timeout_s=2.0,
    )
    # Made before anything is timed: the streams are read in this process, too.
    grammars = [heavy(number) for number in range(MADE)]
    async with engine:
        streams = Streams(engine)
        reading = [asyncio.create_task(streams.read(number)) for number in range(STREAMS)]
        await asyncio.sleep(1.0)
        alone = await streams.during(asyncio.sleep(SECONDS))
        beside = await streams.during(ask_for(engine, SECONDS, grammars))
        streams.over = True
        await asyncio.gather(*reading)
    ratio = float(np.mean(beside) / np.mean(alone))
    return {
        "streams": STREAMS,
        "step_ms": STEP_MS,
        "heavy": HEAVY,
        "alone": spread(alone),
        "beside": spread(beside),
        "ratio": round(ratio, 3),
    }


def line(figures: dict[str, Any]) -> str:
    """The figures for a reader."""
    parts = json.dumps({name: figures[name] for name in ("alone", "beside")})
    return f"a token beside {HEAVY} heavy grammars: {figures['ratio']} times as long  {parts}"

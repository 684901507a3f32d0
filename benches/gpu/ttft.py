"""How long does the first token of a prompt take on an idle, warm engine, beside its floor?

From the call of ``generate`` to the first update, a prompt of its own each time. The floor is the
prompt's operations at the measured rate of matrix products, or reading the weights once, whichever
takes longer.
"""

import asyncio
import statistics
import time
from collections.abc import Generator
from dataclasses import dataclass

from benches.gpu.engines import Model, engine_config, greedy, started
from benches.gpu.floors import prefill_seconds
from benches.gpu.part import Bench, Part
from pyengine import AsyncEngine
from pyengine.profiling.workload import tokens

# The longest leaves room for one token in the context of Llama 3.
PROMPTS = (128, 1024, 8191)
TIMES = 7


@dataclass(frozen=True)
class Row:
    """One length of a prompt.

    Attributes:
        prompt: Its tokens.
        first_token_s: Median time to first token.
        slowest_s: The longest.
        floor_s: Of the prefill.
        over_floor: Of the median.
        prompt_tokens_per_s: Over the median.
        note: Why figures are missing.
    """

    prompt: int
    first_token_s: float | None = None
    slowest_s: float | None = None
    floor_s: float | None = None
    over_floor: float | None = None
    prompt_tokens_per_s: float | None = None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """One prompt at a time."""
    prompts = (8, 40) if bench.tiny else PROMPTS
    config = engine_config(bench, max_sequences=16, max_context=prompts[-1] + 1)
    with asyncio.Runner() as loop:
        opened = started(bench, config)
        engine, model = loop.run(opened.__aenter__())
        try:
            for prompt in prompts:
                yield loop.run(point(bench, engine, model, prompt))
        finally:
            loop.run(opened.__aexit__(None, None, None))


async def point(bench: Bench, engine: AsyncEngine, model: Model, prompt: int) -> Row:
    """One length of a prompt."""
    if prompt + 1 > engine.max_context:
        return Row(prompt, note=f"the context is {engine.max_context} tokens")
    times = []
    warm = 1 if bench.tiny else 2
    for seed in range(warm + (2 if bench.tiny else TIMES)):
        ids = tokens(seed, prompt, engine.info.vocab_size)
        begin = time.perf_counter()
        async for _ in engine.generate(ids, greedy(1)):
            times.append(time.perf_counter() - begin)
            break
        await engine.drained()
    times = times[warm:]
    median = statistics.median(times)
    floor = bench.floor(lambda c: prefill_seconds(c, model.shape, prompt, model.item))
    return Row(
        prompt,
        first_token_s=median,
        slowest_s=max(times),
        floor_s=floor,
        over_floor=None if floor is None else median / floor,
        prompt_tokens_per_s=prompt / median,
    )


PART = Part("ttft", "How long does the first token take, beside its floor?", 25.0, Row, run)

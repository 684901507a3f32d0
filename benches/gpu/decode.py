"""Time of a token at each number of sequences and each context, beside its floor.

Through the engine, from prompts of tokens that share nothing. The floor reads the weights and the
keys and values once, at the bandwidth that was measured. ``exposed`` is the share of that time in
which the device waited for the CPU, by the engine's own accounting; here service and engine share
a process.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, replace

from benches.gpu.engines import (
    Model,
    answer_tokens,
    engine_config,
    started,
    steady,
    warm_up,
)
from benches.gpu.part import Bench, Part
from pyengine import AsyncEngine

SEQUENCES = (1, 4, 8, 16, 32, 64, 128, 256)
CONTEXTS = (512, 4096)
WINDOW = 96
# Multiple of the answers that the context holds, because some are asked again.
ROOM = 8


@dataclass(frozen=True)
class Row:
    """One batch and context.

    Attributes:
        sequences: That decode at once.
        context: Tokens of each prompt.
        token_s: Time per output token: from one token of a sequence to its next.
        tokens_per_s: Of all sequences.
        floor_s: Of a step, at the context in the middle of the window.
        over_floor: Of the time per output token.
        exposed_ratio: Time that the device waited for the CPU, over the time that it worked.
        note: Why figures are missing.
    """

    sequences: int
    context: int
    token_s: float | None = None
    tokens_per_s: float | None = None
    floor_s: float | None = None
    over_floor: float | None = None
    exposed_ratio: float | None = None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """Points by context, few sequences first."""
    sequences = (1, 2) if bench.tiny else SEQUENCES
    contexts = (8, 24) if bench.tiny else CONTEXTS
    config = engine_config(bench, max_sequences=sequences[-1])
    longest = answer_tokens(
        sequences[-1], contexts[-1], config.limits.max_tokens_per_step, window(bench)
    )
    config = replace(config, max_context=contexts[-1] + ROOM * longest)
    with asyncio.Runner() as loop:
        opened = started(bench, config)
        engine, model = loop.run(opened.__aenter__())
        try:
            for context in contexts:
                for count in sequences:
                    yield loop.run(point(bench, engine, model, count, context))
        finally:
            loop.run(opened.__aexit__(None, None, None))


def window(bench: Bench) -> int:
    """Steps that a figure is taken over, about."""
    return 160 if bench.tiny else WINDOW


async def point(
    bench: Bench, engine: AsyncEngine, model: Model, sequences: int, context: int
) -> Row:
    """One batch and context."""
    per_step = engine.config.limits.max_tokens_per_step
    answer = answer_tokens(sequences, context, per_step, window(bench))
    blocks = sequences * -(-(context + answer) // engine.config.block_size)
    if blocks > engine.info.num_blocks:
        return Row(
            sequences,
            context,
            note=f"takes {blocks} KV blocks, {engine.info.num_blocks} fit the memory",
        )
    # A first time with short prompts, so that what is made for this batch is made.
    await warm_up(engine, sequences, 4 if bench.tiny else 32)
    seen = await steady(engine, sequences, context, window(bench))
    floor = bench.floor(lambda c: model.step_s(c, sequences, 1, seen.context))
    return Row(
        sequences,
        context,
        token_s=seen.token_s,
        tokens_per_s=sequences / seen.token_s,
        floor_s=floor,
        over_floor=None if floor is None else seen.token_s / floor,
        exposed_ratio=seen.totals.exposed_cpu_ratio,
    )


PART = Part("decode", "How long does a token take, beside its floor?", 110.0, Row, run)

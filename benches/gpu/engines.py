"""Engines that the bench builds, and steady decode in them.

::

    sequence 0   ▒▒▒▒████████████████████████████─
    sequence 1   ····▒▒▒▒████████████████████████····
    sequence 2   ········▒▒▒▒████████████████████████   ▒ prefill   █ a token a step
                             ├── window ───────┤
                             all decode        one has ended
"""

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from benches.gpu.floors import ITEM_BYTES, Ceilings, Shape, step_seconds
from benches.gpu.part import Bench
from pyengine import AsyncEngine, EngineConfig, SamplingParams
from pyengine.model.spec import ModelSpec, describe
from pyengine.placement import PlacementName
from pyengine.profiling.workload import tokens
from pyengine.telemetry import Totals

# Tokens of a prompt in one step: as much as keeps matrix products busy.
PREFILL_TOKENS = 8192
# Tokens that every sequence has got before the window begins.
SETTLED_TOKENS = 16


def engine_config(bench: Bench, **settings: Any) -> EngineConfig:
    """A server with dummy weights, without shared prefixes and drafts.

    Prompts have the whole of a step beside decodes, on the CPU too: all are to decode soon.
    """
    most = 256 if bench.tiny else PREFILL_TOKENS
    given: dict[str, Any] = {
        "model": bench.model,
        "load_format": "dummy",
        "mode": "server",
        "device": bench.device.type,
        "prefix_cache": False,
        "speculation": (),
        "max_draft": 0,
        "max_tokens_per_step": most,
        "prefill_beside_decodes": most,
        **settings,
    }
    if bench.cuda:
        given |= {"dtype": "bfloat16", "attention": bench.attention}
    return EngineConfig(**given)


@dataclass(frozen=True)
class Model:
    """The model's dimensions and bytes of an element, for floors."""

    shape: Shape
    item: int

    @classmethod
    def of(cls, described: ModelSpec) -> "Model":
        """Of what ``describe`` says about a configuration."""
        return cls(Shape.of(described.config), ITEM_BYTES[described.info.dtype])

    def step_s(self, ceilings: Ceilings, rows: int, each: int, context: float) -> float:
        """The floor of a step; see :func:`benches.gpu.floors.step_seconds`."""
        return step_seconds(ceilings, self.shape, rows, each, context, self.item)


@asynccontextmanager
async def started(
    bench: Bench, config: EngineConfig, placement: PlacementName = "thread"
) -> AsyncIterator[tuple[AsyncEngine, Model]]:
    """An engine that has answered its first request, and its model."""
    model = Model.of(describe(config))
    begin = time.perf_counter()
    engine = AsyncEngine(config=config, placement=placement)
    try:
        await engine.start()
        bench.say(
            f"{engine.model_name} on {placement} is up after {time.perf_counter() - begin:.1f} s: "
            f"{engine.info.num_blocks} blocks of {config.block_size} tokens"
        )
        bench.about({"engine": engine.info.device, **engine.info.notes})
        await engine.generate([1, 2, 3], greedy(4))
        yield engine, model
    finally:
        await engine.close()


def greedy(count: int) -> SamplingParams:
    """Parameters of an answer of exactly ``count`` tokens."""
    return SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)


@dataclass(frozen=True)
class Steady:
    """A window in which all sequences decoded.

    Attributes:
        sequences: How many.
        tokens: That came in the window.
        seconds: From its first moment to its last.
        context: Tokens of a sequence in the middle of it, on average.
        totals: What the engine's accounting added up meanwhile.
    """

    sequences: int
    tokens: int
    seconds: float
    context: float
    totals: Totals

    @property
    def token_s(self) -> float:
        """Seconds from one token of a sequence to its next."""
        return self.seconds * self.sequences / self.tokens


@dataclass
class _Crowd:
    """A number of sequences and the tokens that they have got."""

    engine: AsyncEngine
    got: list[int]
    settled: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)
    # When it began and ended, and the tokens of all until then.
    window: list[tuple[float, int]] = field(default_factory=list)

    async def read(self, index: int, prompt: list[int], count: int) -> None:
        async for update in self.engine.generate(prompt, greedy(count)):
            before = self.got[index]
            self.got[index] += len(update.token_ids)
            if before < SETTLED_TOKENS <= self.got[index] and min(self.got) >= SETTLED_TOKENS:
                self._mark(self.settled)
            # Not by the end of the stream: the last tokens come before it.
            if self.got[index] >= count:
                self._mark(self.ended)

    def _mark(self, event: asyncio.Event) -> None:
        if not event.is_set():
            self.window.append((time.perf_counter(), sum(self.got)))
            event.set()


def answer_tokens(sequences: int, context: int, per_step: int, window: int) -> int:
    """Tokens of each answer, so that the first to begin has ``window`` left when the last settles.

    Prefills take ``sequences * context / per_step`` steps, in each of which those that are
    through get a token; a few more because steps hold those tokens too.
    """
    prefill = math.ceil(sequences * context / max(1, per_step - sequences))
    return window + SETTLED_TOKENS + prefill + math.ceil(0.1 * prefill) + 2


async def warm_up(engine: AsyncEngine, sequences: int, count: int) -> None:
    """Decode ``count`` tokens of each of several short sequences at once."""
    vocabulary = engine.info.vocab_size
    prompts = [tokens(seed, 8, vocabulary) for seed in range(sequences)]
    await asyncio.gather(*(engine.generate(prompt, greedy(count)) for prompt in prompts))


async def steady(engine: AsyncEngine, sequences: int, context: int, window: int) -> Steady:
    """Decode ``sequences`` sequences of ``context`` tokens at once for some ``window`` steps.

    Where one ended before all of them decoded, as on a machine that stalls, they are asked again,
    for answers twice as long, up to the engine's context.

    Raises:
        RuntimeError: They never decoded all at once.
    """
    prompts = [tokens(seed, context, engine.info.vocab_size) for seed in range(sequences)]
    count = answer_tokens(sequences, context, engine.config.limits.max_tokens_per_step, window)
    while context + count <= engine.max_context:
        if (seen := await _together(engine, prompts, count)) is not None:
            return seen
        count *= 2
    raise RuntimeError("a sequence ended before all of them decoded")


async def _together(engine: AsyncEngine, prompts: list[list[int]], count: int) -> Steady | None:
    """The window of ``prompts`` with answers of ``count`` tokens; None if one ended before it."""
    sequences = len(prompts)
    crowd = _Crowd(engine, [0] * sequences)
    readers = [
        asyncio.create_task(crowd.read(index, prompt, count))
        for index, prompt in enumerate(prompts)
    ]
    try:
        await _first(crowd.settled, readers)
        if crowd.ended.is_set():
            return None
        before = await engine.telemetry()
        await _first(crowd.ended, readers)
        totals = (await engine.telemetry()).since(before)
    finally:
        for reader in readers:
            reader.cancel()
        await asyncio.gather(*readers, return_exceptions=True)
        await engine.drained()
    (begin, got), (end, got_then) = crowd.window
    middle = (got + got_then) / 2 / sequences
    return Steady(sequences, got_then - got, end - begin, len(prompts[0]) + middle, totals)


async def _first(event: asyncio.Event, readers: list[asyncio.Task[None]]) -> None:
    """Wait for ``event``; what breaks a reader is raised."""
    waiting = asyncio.create_task(event.wait())
    pending: set[asyncio.Task[Any]] = {waiting, *readers}
    try:
        while not event.is_set():
            done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
    finally:
        waiting.cancel()

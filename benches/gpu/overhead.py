"""How long does the device wait for the CPU, by the engine's own accounting?

As ``pyengine profile`` measures it: steady decode with stop strings, streamed to readers, every
span of every part held against the device's busy intervals. Contexts are short, so that steps are
too and hide little. The engine is warm: capturing graphs is a matter of ``graphs.py``.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass, field

from benches.gpu.engines import engine_config, started, warm_up
from benches.gpu.part import Bench, Part
from pyengine import AsyncEngine, SamplingParams
from pyengine.placement import PlacementName
from pyengine.profiling.observe import Observation, observe
from pyengine.profiling.report import ProfileReport
from pyengine.profiling.workload import tokens

PROMPT = 32
# Tokens that every reader has got before the accounting begins.
SETTLED_TOKENS = 32
SECONDS = 3.0
# Never said, but looked for at every token, as a chat's are.
STOP = ("\u241f\u241f stop here \u241f\u241f", "Observation\u241f:")

# Where `pyengine serve` has the engine; and in the service's own process.
POINTS: dict[PlacementName, tuple[int, ...]] = {"process": (1, 64, 256), "thread": (1, 64, 256)}


@dataclass(frozen=True)
class Row:
    """One batch.

    Attributes:
        placement: Where the engine ran: ``process`` or ``thread``.
        sequences: That decode at once.
        exposed_ratio: Time that the device waited for the CPU, over the time that it worked.
        step_s: Mean time of a step.
        step_p99_s: Its 99th percentile.
        tokens_per_s: At the readers.
        scheduler_s: CPU time of a step on the scheduler's thread, waiting not counted; like the
            two that follow.
        detokenizer_s: On the detokenizer's.
        frontend_s: On the readers' loop.
        unaccounted_ratio: The share of the wall time that is in no stage.
    """

    placement: str
    sequences: int
    exposed_ratio: float
    step_s: float
    step_p99_s: float
    tokens_per_s: float
    scheduler_s: float
    detokenizer_s: float
    frontend_s: float
    unaccounted_ratio: float


def run(bench: Bench) -> Generator[Row]:
    """An engine for each placement."""
    points: dict[PlacementName, tuple[int, ...]] = {"thread": (1, 2)} if bench.tiny else POINTS
    for placement, counts in points.items():
        context = 256 if bench.tiny else 4096
        config = engine_config(bench, max_sequences=counts[-1], max_context=context)
        with asyncio.Runner() as loop:
            opened = started(bench, config, placement)
            engine, _ = loop.run(opened.__aenter__())
            try:
                for sequences in counts:
                    yield loop.run(point(bench, engine, placement, sequences))
            finally:
                loop.run(opened.__aexit__(None, None, None))


@dataclass
class _Readers:
    """Readers of streams, and the tokens that they have got."""

    engine: AsyncEngine
    got: list[int]
    settled: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, index: int) -> None:
        """Answers as long as the context takes, one after the other."""
        room = self.engine.max_context - PROMPT
        params = SamplingParams(max_tokens=room, ignore_eos=True, stop=STOP, seed=index)
        prompt = tokens(index, PROMPT, self.engine.info.vocab_size)
        while True:
            async for update in self.engine.generate(prompt, params):
                self.got[index] += len(update.token_ids)
                if not self.settled.is_set() and min(self.got) >= SETTLED_TOKENS:
                    self.settled.set()


async def watched(bench: Bench, engine: AsyncEngine, sequences: int) -> tuple[Observation, int]:
    """Run readers for a while: what was seen, and the tokens that came."""
    await warm_up(engine, sequences, 4 if bench.tiny else 32)
    crowd = _Readers(engine, [0] * sequences)
    async with asyncio.TaskGroup() as group:
        readers = [group.create_task(crowd.read(index)) for index in range(sequences)]
        await crowd.settled.wait()
        before = sum(crowd.got)
        seconds = 0.2 if bench.tiny else SECONDS
        observation = await observe(engine, lambda: asyncio.sleep(seconds))
        count = sum(crowd.got) - before
        for reader in readers:
            reader.cancel()
    await engine.drained()
    return observation, count


async def point(bench: Bench, engine: AsyncEngine, placement: PlacementName, sequences: int) -> Row:
    """One batch."""
    observation, count = await watched(bench, engine, sequences)
    report = ProfileReport.of(observation, {}, count)
    micros = report.cpu_us_per_step
    return Row(
        placement,
        sequences,
        exposed_ratio=report.exposed_cpu_ratio,
        step_s=report.step_ms.mean * 1e-3,
        step_p99_s=report.step_ms.p99 * 1e-3,
        tokens_per_s=report.tokens_per_second,
        scheduler_s=micros.get("scheduler", 0.0) * 1e-6,
        detokenizer_s=micros.get("detokenizer", 0.0) * 1e-6,
        frontend_s=micros.get("frontend", 0.0) * 1e-6,
        unaccounted_ratio=report.unaccounted_ratio,
    )


PART = Part("overhead", "How long does the device wait for the CPU?", 45.0, Row, run)

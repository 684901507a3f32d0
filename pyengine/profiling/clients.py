"""The clients of a profiled engine: a reader for each sequence, and a service beside them."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import Any

from pyengine.async_engine import AsyncEngine
from pyengine.errors import PyengineError
from pyengine.grammar import Grammar
from pyengine.profiling.schemas import grammars
from pyengine.profiling.workload import Job, Workload
from pyengine.sampling import SamplingParams

# Never said by a model that speaks words, but looked for at every token.
STOP_STRINGS = ("\u241f\u241f stop here \u241f\u241f", "Observation\u241f:")
# Tokens that every sequence has got before it counts.
WARM_UP_TOKENS = 8
BUSY_S = 0.002


@dataclass
class Readers:
    """The clients: what they have read. Several engines get the jobs in turn."""

    engines: list[AsyncEngine]
    grammars: tuple[Grammar, ...] = ()
    tokens: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _warm: set[int] = field(default_factory=set)
    _all_warm: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, job: Job, seed: int) -> None:
        """Offer one job and read its stream to the end. No two that run have the same seed."""
        rules: dict[str, Any] = {"stop": STOP_STRINGS, "seed": seed, **job.sampling}
        params = SamplingParams(max_tokens=job.answer_tokens, ignore_eos=True, **rules)
        chosen = self.grammars or (grammars("records") if job.constrained else (None,))
        grammar = chosen[seed % len(chosen)]
        got = 0
        engine = self.engines[seed % len(self.engines)]
        async for update in engine.generate(
            job.prompt, params, grammar=grammar, priority=job.priority
        ):
            self.tokens += len(update.token_ids)
            got += len(update.token_ids)
            # A grammar may end an answer early.
            if seed not in self._warm and (
                got >= WARM_UP_TOKENS or update.finish_reason is not None
            ):
                self._warm.add(seed)
                if len(self._warm) == len(self.tasks):
                    self._all_warm.set()

    async def repeat(self, job: Job, seed: int) -> None:
        """A job again and again, so that the number of sequences stays."""
        while True:
            await self.read(job, seed)

    async def replay(self, workload: Workload, seconds: float) -> None:
        """Offer each job at its time; returns when all are answered, or after ``seconds``."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                start = time.perf_counter()
                for seed, job in enumerate(workload.jobs):
                    await asyncio.sleep(start + job.arrival_s - time.perf_counter())
                    self.tasks.append(asyncio.create_task(self.read(job, seed)))
                await asyncio.wait(self.tasks)

    async def warmed_up(self) -> None:
        """Wait until every reader has got its first tokens, or one has failed."""
        warm = asyncio.create_task(self._all_warm.wait())
        await asyncio.wait([warm, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
        warm.cancel()

    async def stop(self) -> None:
        """End all clients; raises if the engine refused a request, or died."""
        for task in self.tasks:
            task.cancel()
        done = await asyncio.gather(*self.tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, PyengineError):
                raise result


@contextlib.asynccontextmanager
async def busy_loop(wanted: bool) -> AsyncIterator[None]:
    """A service that computes for 2 ms at a time, half of the time, on this loop."""

    async def compute() -> None:
        while True:
            until = time.perf_counter() + BUSY_S
            while time.perf_counter() < until:
                sum(number * number for number in range(200))
            await asyncio.sleep(BUSY_S)

    if not wanted:
        yield
        return
    task = asyncio.create_task(compute())
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

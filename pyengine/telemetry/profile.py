"""Running a workload and watching the engine meanwhile: the work behind ``pyengine profile``.

::

    readers ── one a sequence: offer a job, read its stream, count tokens ──┐
    busy loop (if asked): computes half of the time on the same loop        ├─ one asyncio loop
    observe() ── totals before and after, spans meanwhile                   ┘
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.config import EngineConfig
from pyengine.errors import ConfigError, PyengineError
from pyengine.grammar import Grammar
from pyengine.model.shape import describe
from pyengine.placement import PlacementName
from pyengine.sampling import SamplingParams
from pyengine.telemetry.observe import Observation, observe
from pyengine.telemetry.report import ProfileReport, SweepPoint
from pyengine.telemetry.workload import Job, Workload, constant, from_trace

# Never said by a model that speaks words, but looked for at every token.
STOP_STRINGS = ("\u241f\u241f stop here \u241f\u241f", "Observation\u241f:")
# Tokens that every sequence has got before it counts.
WARM_UP_TOKENS = 8
BUSY_S = 0.002


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """What is profiled.

    Attributes:
        config: The engine; sequences and cache are made to fit the workload.
        placement: Where it runs.
        sequences: How many run at once.
        seconds: How long to watch steady decode, or a trace at most.
        prompt_tokens: Of each prompt, without a trace.
        trace: A file of arrivals and lengths, in place of so many sequences at once.
        rate_scale: Its arrivals come so many times as fast.
        limit: Its first so many requests.
        clip: Shorten what the context does not take.
        busy_loop: Measure once more beside a busy loop.
        sweep: Further numbers of sequences, measured one after the other.
        grammar: What every answer must look like, and its name; None leaves them free.
    """

    config: EngineConfig
    placement: PlacementName = "process"
    sequences: int = 64
    seconds: float = 5.0
    prompt_tokens: int = 32
    trace: Path | None = None
    rate_scale: float = 1.0
    limit: int | None = None
    clip: bool = False
    busy_loop: bool = False
    sweep: tuple[int, ...] = ()
    grammar: tuple[str, Grammar] | None = None

    @property
    def setup(self) -> dict[str, Any]:
        """For the report, which knows by itself what the device was."""
        simulated = self.config.device == "simulated"
        return {
            "step_ms": self.config.simulated_step_ms if simulated else None,
            "placement": self.placement,
            "sequences": self.sequences,
            "prompt_tokens": self.prompt_tokens if self.trace is None else None,
            "grammar": None if self.grammar is None else self.grammar[0],
            "speculation": ", ".join(self.config.proposers) or None,
        }


@dataclass
class _Readers:
    """The clients: what they have read."""

    engine: AsyncEngine
    grammar: Grammar | None = None
    tokens: int = 0
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _warm: set[int] = field(default_factory=set)
    _all_warm: asyncio.Event = field(default_factory=asyncio.Event)

    async def read(self, job: Job, seed: int) -> None:
        """Offer one job and read its stream to the end. No two that run have the same seed."""
        params = SamplingParams(
            max_tokens=job.answer_tokens, ignore_eos=True, stop=STOP_STRINGS, seed=seed
        )
        got = 0
        async for update in self.engine.generate(job.prompt, params, grammar=self.grammar):
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

    async def warmed_up(self) -> None:
        """Wait until every reader has got its first tokens, or one has failed."""
        warm = asyncio.create_task(self._all_warm.wait())
        await asyncio.wait([warm, *self.tasks], return_when=asyncio.FIRST_COMPLETED)
        warm.cancel()

    async def stop(self) -> None:
        """End them all; an engine that refused one, or died, is told."""
        for task in self.tasks:
            task.cancel()
        done = await asyncio.gather(*self.tasks, return_exceptions=True)
        for result in done:
            if isinstance(result, PyengineError):
                raise result


async def profile(options: ProfileOptions) -> tuple[ProfileReport, Observation]:
    """Run everything that ``options`` asks for; the report, and what the main run saw.

    Raises:
        PyengineError: The engine cannot be had, or the workload does not fit.
    """
    if options.trace is not None:
        return await _profile_trace(options)
    observation, tokens = await _steady(options, options.sequences, options.seconds)
    report = ProfileReport.of(observation, options.setup, tokens)
    if options.busy_loop:
        beside, read = await _steady(options, options.sequences, options.seconds, busy=True)
        report = msgspec.structs.replace(
            report,
            exposed_cpu_ratio_busy_loop=beside.totals.exposed_cpu_ratio,
            tokens_per_second_busy_loop=read / beside.seconds,
        )
    if options.sweep:
        report = msgspec.structs.replace(
            report, sweep=[await _sweep_point(options, n) for n in options.sweep]
        )
    return report, observation


async def _sweep_point(options: ProfileOptions, sequences: int) -> SweepPoint:
    observation, tokens = await _steady(options, sequences, options.seconds)
    report = ProfileReport.of(observation, options.setup, tokens)
    return SweepPoint(
        sequences,
        report.exposed_cpu_ratio,
        report.tokens_per_second,
        report.step_ms.mean,
        report.cpu_us_per_step,
    )


async def _steady(
    options: ProfileOptions, sequences: int, seconds: float, busy: bool = False
) -> tuple[Observation, int]:
    """Watch ``sequences`` sequences decode; the observation, and the tokens that were read."""
    shape = describe(options.config)
    answer = shape.info.max_context - options.prompt_tokens
    if answer < WARM_UP_TOKENS:
        raise ConfigError(
            f"the context is {shape.info.max_context} tokens: no room for an answer after a prompt "
            f"of {options.prompt_tokens}"
        )
    # So many as the device can need, so that all of it is decode; more only where a step takes
    # nothing, or the CPU computes it, and then a sequence that has ended is followed by its like.
    if options.config.device == "simulated" and options.config.simulated_step_ms > 0:
        steps = (seconds + 5.0) * 1000 / options.config.simulated_step_ms
        answer = min(answer, round(steps) + WARM_UP_TOKENS)
    config = _fitted(options.config, sequences, options.prompt_tokens + answer)
    workload = constant(sequences, options.prompt_tokens, answer, shape.info.vocab_size)
    async with AsyncEngine(config=config, placement=options.placement) as engine, _busy(busy):
        readers = _Readers(engine, _grammar(options))
        readers.tasks = [
            asyncio.create_task(readers.repeat(job, seed)) for seed, job in enumerate(workload.jobs)
        ]
        try:
            await readers.warmed_up()
            before, start = readers.tokens, time.perf_counter()
            observation = await observe(engine, lambda: asyncio.sleep(seconds))
            tokens = readers.tokens - before
            observation = replace(observation, seconds=time.perf_counter() - start)
        finally:
            await readers.stop()
    return observation, tokens


async def _profile_trace(options: ProfileOptions) -> tuple[ProfileReport, Observation]:
    """Offer a trace's requests as they come, until all are answered or the time is over."""
    assert options.trace is not None
    shape = describe(options.config)
    workload = from_trace(
        options.trace,
        vocab_size=shape.info.vocab_size,
        max_context=shape.info.max_context,
        rate_scale=options.rate_scale,
        limit=options.limit,
        clip=options.clip,
    )
    config = replace(
        _fitted(options.config, options.sequences, shape.info.max_context),
        max_waiting=max(options.config.max_waiting, len(workload.jobs)),
    )
    async with AsyncEngine(config=config, placement=options.placement) as engine:
        readers = _Readers(engine, _grammar(options))
        try:
            start = time.perf_counter()
            observation = await observe(engine, lambda: _replay(readers, workload, options.seconds))
            observation = replace(observation, seconds=time.perf_counter() - start)
        finally:
            await readers.stop()
    answered = sum(task.done() and not task.cancelled() for task in readers.tasks)
    setup = options.setup | {
        "workload": workload.name,
        "requests": len(workload.jobs),
        "answered": answered,
        "clipped": workload.clipped,
    }
    return ProfileReport.of(observation, setup, readers.tokens), observation


async def _replay(readers: _Readers, workload: Workload, seconds: float) -> None:
    """Offer each job at its time; returns when all are answered, or after ``seconds``."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            start = time.perf_counter()
            for seed, job in enumerate(workload.jobs):
                await asyncio.sleep(start + job.arrival_s - time.perf_counter())
                readers.tasks.append(asyncio.create_task(readers.read(job, seed)))
            await asyncio.wait(readers.tasks)


def _grammar(options: ProfileOptions) -> Grammar | None:
    return None if options.grammar is None else options.grammar[1]


def _fitted(config: EngineConfig, sequences: int, tokens_each: int) -> EngineConfig:
    """``config`` with room for ``sequences`` sequences of ``tokens_each`` tokens."""
    blocks = sequences * -(-tokens_each // config.block_size) + sequences
    return replace(
        config,
        max_sequences=sequences,
        max_tokens_per_step=max(config.max_tokens_per_step or 2048, sequences),
        num_blocks=config.num_blocks or (blocks if config.device == "simulated" else None),
        max_waiting=max(config.max_waiting, sequences),
    )


@contextlib.asynccontextmanager
async def _busy(wanted: bool) -> AsyncIterator[None]:
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

"""Running a workload and watching the engine meanwhile: the work behind ``pyengine profile``.

::

    readers ── one a sequence: offer a job, read its stream, count tokens ──┐
    busy loop (if asked): computes half of the time on the same loop        ├─ one asyncio loop
    observe() ── totals before and after, spans meanwhile                   ┘
"""

import asyncio
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np

from pyengine.async_engine import AsyncEngine
from pyengine.errors import ConfigError
from pyengine.grammar import Grammar
from pyengine.model.spec import describe
from pyengine.model.step_model import first_line
from pyengine.placement import PlacementName
from pyengine.profiling.clients import WARM_UP_TOKENS, Readers, busy_loop
from pyengine.profiling.ideal_cache import ideal_cached_share
from pyengine.profiling.observe import Observation, observe
from pyengine.profiling.recording import Heading
from pyengine.profiling.report import ProfileReport, ReplayPoint, SweepPoint
from pyengine.profiling.workload import Trace, Workload, arrivals, read_trace
from pyengine.settings.config import EngineConfig

RECORDED_LIMITS = (
    "max_sequences", "max_tokens_per_step", "max_context", "block_size", "num_blocks",
)  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class ProfileOptions:
    """Options of a profile.

    Attributes:
        config: The engine; sequences and cache are made to fit the workload.
        placement: Where it runs.
        sequences: How many run at once.
        seconds: How long to watch steady decode, or a trace at most.
        prompt_tokens: The prompt tokens of each prompt, without a trace.
        trace: A file of arrivals and lengths, in place of a fixed number of sequences at once.
        replay: The trace is a recording; the engine has the limits of the one that was recorded.
        what_if: Changes of its settings, as ``name=number,...``, each replayed for itself.
        rate_scale: Factor by which its arrivals come faster.
        limit: Number of its requests to take, from the first on.
        clip: Shorten what the context does not take.
        busy_loop: Measure once more beside a busy loop.
        sampled: Take samples of the engine's stats meanwhile.
        pyspy: Let py-spy sample Python functions meanwhile.
        sweep: Further numbers of sequences, measured one after the other.
        grammar: A name, and what answers must look like, one after the other; None leaves them
            free.
    """

    config: EngineConfig
    placement: PlacementName = "process"
    sequences: int = 64
    seconds: float = 5.0
    prompt_tokens: int = 32
    trace: Path | None = None
    replay: bool = False
    what_if: tuple[str, ...] = ()
    rate_scale: float = 1.0
    limit: int | None = None
    clip: bool = False
    busy_loop: bool = False
    sampled: bool = False
    pyspy: bool = False
    sweep: tuple[int, ...] = ()
    grammar: tuple[str, tuple[Grammar, ...]] | None = None

    @property
    def setup(self) -> dict[str, Any]:
        """The setup for the report, without the device, which the report names itself."""
        simulated = self.config.device == "simulated"
        return {
            "step_ms": self.config.simulated_step_ms if simulated else None,
            "placement": self.placement,
            "sequences": self.sequences,
            "prompt_tokens": self.prompt_tokens if self.trace is None else None,
            "grammar": None if self.grammar is None else self.grammar[0],
            "speculation": ", ".join(self.config.proposers) or None,
        }


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
    config = _fitted(options, sequences, seconds)
    async with AsyncEngine(config=config, placement=options.placement) as engine, busy_loop(busy):
        answer = _answer_tokens(options, seconds, engine.max_context)
        # No more than each one's share of the cache: a preempted sequence does not decode.
        share = engine.info.num_blocks * config.block_size // sequences - options.prompt_tokens
        answer = min(answer, max(share, WARM_UP_TOKENS))
        jobs = arrivals(
            sequences,
            prompt_tokens=options.prompt_tokens,
            answer_tokens=answer,
            vocab_size=engine.info.vocab_size,
        )
        readers = Readers([engine], _grammars(options))
        readers.tasks = [
            asyncio.create_task(readers.repeat(job, seed)) for seed, job in enumerate(jobs)
        ]
        try:
            await readers.warmed_up()
            before, start = readers.tokens, time.perf_counter()
            observation = await observe(
                engine,
                lambda: asyncio.sleep(seconds),
                sampled=options.sampled,
                pyspy=options.pyspy,
            )
            tokens = readers.tokens - before
            observation = replace(observation, seconds=time.perf_counter() - start)
        finally:
            await readers.stop()
    return observation, tokens


async def _profile_trace(options: ProfileOptions) -> tuple[ProfileReport, Observation]:
    """Offer a trace's requests as they come, until all are answered or the time is over."""
    assert options.trace is not None
    trace = read_trace(options.trace, options.limit)
    heading = first_line(options.trace, Heading) if options.replay else None
    if heading is None:
        config = _fitted(options, options.sequences)
    else:
        limits = {name: getattr(heading.engine, name) for name in RECORDED_LIMITS}
        config = replace(options.config, **limits)
        if config.device == "simulated" and config.speculation is None and heading.speculation:
            config = replace(
                config,
                speculation=heading.speculation,
                simulated_acceptance=heading.acceptance,
            )
    what_if = {changes: _changed(config, changes) for changes in options.what_if}
    offered = await _offered(options, config, trace)
    observation, jobs = offered.observation, offered.workload.jobs
    setup = options.setup | {
        "workload": offered.workload.name,
        "requests": len(jobs),
        "answered": offered.answered,
        "clipped": offered.workload.clipped,
    }
    report = msgspec.structs.replace(
        ProfileReport.of(observation, setup, offered.tokens),
        cached_share=observation.stats["cached_tokens"]
        / max(observation.stats["prompt_tokens"], 1),
        ideal_cached_share=ideal_cached_share(
            jobs[: offered.answered], offered.num_blocks, config.block_size
        ),
    )
    if heading is not None:
        replays = [heading.waits, ReplayPoint.of("replayed", observation.spans)]
        for changes, (changed, replicas) in what_if.items():
            again = await _offered(options, changed, trace, replicas)
            replays.append(ReplayPoint.of(changes, again.observation.spans))
        report = msgspec.structs.replace(report, replays=replays)
    return report, observation


class _Offered(NamedTuple):
    """A workload that was offered to engines, and what they did; the spans are those of all."""

    workload: Workload
    observation: Observation
    tokens: int
    answered: int
    num_blocks: int


async def _offered(
    options: ProfileOptions, config: EngineConfig, trace: Trace, replicas: int = 1
) -> _Offered:
    """Offer the requests of ``trace`` to engines, which get them in turn."""
    config = replace(config, max_waiting=max(config.max_waiting, len(trace.rows)))
    async with AsyncExitStack() as stack:
        made = [AsyncEngine(config=config, placement=options.placement) for _ in range(replicas)]
        engines = [await stack.enter_async_context(engine) for engine in made]
        info = engines[0].info
        workload = trace.workload(
            vocab_size=info.vocab_size,
            max_context=engines[0].max_context,
            rate_scale=options.rate_scale,
            clip=options.clip,
        )
        readers, over = Readers(engines, _grammars(options)), asyncio.Event()

        async def replay() -> None:
            await readers.replay(workload, options.seconds)
            over.set()

        try:
            start = time.perf_counter()
            observation, *others = await asyncio.gather(
                observe(engines[0], replay, sampled=options.sampled, pyspy=options.pyspy),
                *(observe(engine, over.wait) for engine in engines[1:]),
            )
            seconds = time.perf_counter() - start
        finally:
            await readers.stop()
    spans = np.concatenate([observation.spans, *(other.spans for other in others)])
    answered = sum(task.done() and not task.cancelled() for task in readers.tasks)
    observation = replace(observation, seconds=seconds, spans=spans)
    return _Offered(workload, observation, readers.tokens, answered, info.num_blocks)


def _changed(config: EngineConfig, text: str) -> tuple[EngineConfig, int]:
    """The configuration with the settings in ``text``, ``name=number,...``, and the replicas.

    Raises:
        ConfigError: There is no such setting, or it does not take the number.
    """
    try:
        parts = (part.partition("=") for part in text.split(","))
        changes: dict[str, Any] = {name: int(number) for name, _, number in parts}
        replicas = changes.pop("replicas", 1)
        if replicas < 1:
            raise ValueError
        return replace(config, **changes), replicas
    except (TypeError, ValueError):
        raise ConfigError(
            f"what if {text!r}? Name integer settings, as max_sequences=512, or replicas=2"
        ) from None


def _answer_tokens(options: ProfileOptions, seconds: float, max_context: int) -> int:
    """Length of each answer, so that ``seconds`` of decode can be watched.

    Raises:
        ConfigError: The context has no room for one.
    """
    room = max_context - options.prompt_tokens
    if room < WARM_UP_TOKENS:
        raise ConfigError(
            f"the context is {max_context} tokens: no room for an answer after a prompt of "
            f"{options.prompt_tokens}"
        )
    # As many as the device can need, so that all of it is decode; more only where a step takes
    # nothing, or the CPU computes it, and then a sequence that has ended is followed by its like.
    if options.config.device == "simulated" and options.config.simulated_step_ms > 0:
        steps = (seconds + 5.0) * 1000 / options.config.simulated_step_ms
        return min(room, round(steps) + WARM_UP_TOKENS)
    return room


def _grammars(options: ProfileOptions) -> tuple[Grammar, ...]:
    return () if options.grammar is None else options.grammar[1]


def _fitted(options: ProfileOptions, sequences: int, seconds: float | None = None) -> EngineConfig:
    """The configuration with room for ``sequences`` sequences, and a cache to it if simulated.

    Their answers are those of a steady decode of ``seconds``, or as long as the context takes. What
    other devices have room for shows when the engine has started; only then it is asked for.
    """
    config, num_blocks = options.config, options.config.num_blocks
    if config.device == "simulated" and num_blocks is None:
        tokens = max_context = describe(config).info.max_context
        if seconds is not None:
            tokens = options.prompt_tokens + _answer_tokens(options, seconds, max_context)
        num_blocks = sequences * -(-tokens // config.block_size) + sequences
    return replace(
        config,
        max_sequences=sequences,
        max_tokens_per_step=max(config.max_tokens_per_step or 2048, sequences),
        num_blocks=num_blocks,
        max_waiting=max(config.max_waiting, sequences),
    )

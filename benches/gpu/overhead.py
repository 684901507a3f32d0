"""How long does the device wait for the CPU, by the engine's own accounting?

As ``pyengine profile`` measures it: steady decode with stop strings, streaming to readers, every
span of every part held against the device's busy intervals. Contexts are short, so that steps are
too and nothing hides the CPU.
"""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass

from benches.gpu.engines import engine_config
from benches.gpu.part import Bench, Part
from pyengine.placement import PlacementName
from pyengine.telemetry.profile import ProfileOptions, profile

# Where `pyengine serve` has the engine; and in the service's own process.
POINTS: tuple[tuple[PlacementName, int], ...] = (
    ("process", 1), ("process", 64), ("process", 256), ("thread", 64),
)  # fmt: skip


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
    """An engine for each point."""
    points: tuple[tuple[PlacementName, int], ...] = (("thread", 2),) if bench.tiny else POINTS
    for placement, sequences in points:
        config = engine_config(bench, max_context=256 if bench.tiny else 4096)
        options = ProfileOptions(
            config=config,
            placement=placement,
            sequences=sequences,
            seconds=0.2 if bench.tiny else 3.0,
            prompt_tokens=8 if bench.tiny else 32,
        )
        report, _ = asyncio.run(profile(options))
        micros = report.cpu_us_per_step
        yield Row(
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


PART = Part("overhead", "How long does the device wait for the CPU?", 60.0, Row, run)

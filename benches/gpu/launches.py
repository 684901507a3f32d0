"""Which kernels has a step of one sequence, and how long does the device take for each?

By torch's profiler, over steps that are replayed from graphs. The time between kernels is what the
steps take beyond the sum of their kernels: launches, and waiting for the last program of the kernel
before.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

from torch.profiler import ProfilerActivity, profile

from benches.gpu.engines import engine_config
from benches.gpu.part import Bench, Part
from benches.gpu.steps import step_times
from pyengine.model.devices import load_runner

STEPS = 20
SETTLED = 20
CONTEXT = 512
# Kernels shown by name; the others are one row.
SHOWN = 24


@dataclass(frozen=True)
class Row:
    """One kernel.

    Attributes:
        kernel: Its name.
        calls: In a step.
        call_s: Of one call.
        time_s: Of all calls of a step.
        step_ratio: That, over the time of a step.
    """

    kernel: str
    calls: float | None
    call_s: float | None
    time_s: float
    step_ratio: float


def run(bench: Bench) -> Generator[Row]:
    """The longest first; then the time between them, and the whole step."""
    context = 8 if bench.tiny else CONTEXT
    runner = load_runner(engine_config(bench, max_sequences=1, max_context=context + 64))
    activity = ProfilerActivity.CUDA if bench.cuda else ProfilerActivity.CPU
    try:
        list(step_times(runner, 1, 1, context, SETTLED))
        with profile(activities=[activity]) as seen:
            times = list(step_times(runner, 1, 1, context, STEPS))
    finally:
        runner.close()
    kernels = [
        (str(event.key), int(event.count), microseconds(event, cuda=bench.cuda) * 1e-6)
        for event in seen.key_averages()
    ]
    yield from rows(kernels, sum(times))


def microseconds(event: Any, *, cuda: bool) -> float:
    """Device time of all calls; on the CPU, time of a call without the calls that it makes."""
    return float(event.self_device_time_total if cuda else event.self_cpu_time_total)


def rows(kernels: list[tuple[str, int, float]], total_s: float) -> Generator[Row]:
    """Makes rows of (name, calls, seconds) in :data:`STEPS` steps that took ``total_s``."""
    step_s = total_s / STEPS
    found = sorted((each for each in kernels if each[2] > 0), key=lambda each: -each[2])
    for name, calls, seconds in found[:SHOWN]:
        taken = seconds / STEPS
        yield Row(name[:100], calls / STEPS, seconds / calls, taken, taken / step_s)
    if rest := found[SHOWN:]:
        calls, taken = sum(each[1] for each in rest), sum(each[2] for each in rest) / STEPS
        yield Row(f"{len(rest)} others", calls / STEPS, None, taken, taken / step_s)
    between = step_s - sum(each[2] for each in found) / STEPS
    yield Row("between kernels", None, None, between, between / step_s)
    yield Row("a step", None, None, step_s, 1.0)


PART = Part("launches", "Which kernels has a step of one sequence?", 12.0, Row, run)

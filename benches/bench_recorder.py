"""What recording costs: a span in Rust and from Python beside a reading of the clock, on and off.

``--json -`` prints the figures as one JSON object. Times are of the thread's CPU, the least of
several rounds, so that a busy machine changes them little.
"""

import argparse
import asyncio
import time
from collections.abc import Callable

from benches.figures import json_option, write_json
from pyengine import AsyncEngine, SamplingParams
from pyengine._core import Recorder, Stage, Track

CALLS = 100_000
ROUNDS = 7
STAGE = Stage.MESSAGE


def least_ns(work: Callable[[], None]) -> float:
    """Nanoseconds of CPU that one of the ``CALLS`` calls in ``work`` takes, the loop left out."""

    def once(run: Callable[[], None]) -> float:
        start = time.thread_time_ns()
        run()
        return (time.thread_time_ns() - start) / CALLS

    def nothing() -> None:
        for _ in range(CALLS):
            pass

    return min(once(work) for _ in range(ROUNDS)) - min(once(nothing) for _ in range(ROUNDS))


def python_costs() -> dict[str, float]:
    """A clock reading, a span of a chain and a span beside it, from Python."""
    recorder = Recorder()
    timeline = recorder.timeline(Track.FRONTEND)
    clock, end_span, span = time.monotonic_ns, timeline.end_span, timeline.span
    timeline.begin()

    def read_clock() -> None:
        for _ in range(CALLS):
            clock()

    def chained() -> None:
        for _ in range(CALLS):
            end_span(STAGE)

    def spans() -> None:
        start = 1
        for _ in range(CALLS):
            start = span(STAGE, start)

    costs = {
        "python_clock_ns": least_ns(read_clock),
        "python_end_span_ns": least_ns(chained),
        "python_span_ns": least_ns(spans),
    }
    recorder.enabled = False
    costs["python_end_span_off_ns"] = least_ns(chained)
    return costs


async def engine_cpu(enabled: bool, sequences: int, tokens: int) -> float:
    """Milliseconds of this process's CPU that a step of a whole engine takes."""
    engine = AsyncEngine(
        device="simulated", simulated_step_ms=2.0, mode="server", max_sequences=sequences
    )
    engine.recorder.enabled = enabled
    params = SamplingParams(max_tokens=tokens, ignore_eos=True, stop=("never said",), seed=1)
    async with engine:
        await asyncio.gather(*[engine.generate([5] * 16, params) for _ in range(sequences)])
        before = (await engine.report())["steps"], time.process_time_ns()
        await asyncio.gather(*[engine.generate([5] * 16, params) for _ in range(sequences)])
        steps = (await engine.report())["steps"] - before[0]
        return (time.process_time_ns() - before[1]) / steps * 1e-6


def measure(sequences: int, tokens: int) -> dict[str, float]:
    """All figures."""
    figures = {"rust_span_ns": min(Recorder.cost_ns() for _ in range(ROUNDS)), **python_costs()}
    runs: dict[bool, list[float]] = {on: [] for on in (True, False)}
    for _ in range(3):
        for on, found in runs.items():
            found.append(asyncio.run(engine_cpu(on, sequences, tokens)))
    figures["step_cpu_on_ms"], figures["step_cpu_off_ms"] = min(runs[True]), min(runs[False])
    figures["on_over_off"] = figures["step_cpu_on_ms"] / figures["step_cpu_off_ms"]
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--sequences", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=150)
    options = parser.parse_args()
    figures = measure(options.sequences, options.tokens)
    if not write_json(figures, options.json):
        return
    clock = figures["python_clock_ns"]
    print(f"a span in Rust, clock included      {figures['rust_span_ns']:6.1f} ns")
    for name in ("clock", "end_span", "span", "end_span_off"):
        cost = figures[f"python_{name}_ns"]
        print(f"{name:8} from Python              {cost:6.1f} ns  {cost / clock:4.2f} x a clock")
    print(
        f"a step of {options.sequences} sequences, on / off: {figures['step_cpu_on_ms']:.3f} / "
        f"{figures['step_cpu_off_ms']:.3f} ms of CPU, {figures['on_over_off']:.3f} x"
    )


if __name__ == "__main__":
    main()

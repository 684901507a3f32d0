"""What do CUDA graphs cost, and what do they save?

Decode steps of each bucket, from the first: some kernel by kernel, then those behind the capture.
Capturing is timed where the runner asks for it, on the CPU, whose time it is; while it lasts, the
device works on the step before.
"""

import statistics
import time
from collections.abc import Callable, Generator, Hashable
from dataclasses import dataclass

from benches.gpu.engines import engine_config
from benches.gpu.part import Bench, Part
from benches.gpu.steps import step_times
from pyengine.model.devices import load_runner
from pyengine.model.graphs import Graphs
from pyengine.model.runner import ModelRunner

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 512
STEPS = 32
# Of a bucket's steps, those that were computed before any graph, but for the first, which compiles.
EAGER = slice(1, 3)
REPLAYED = slice(20, None)
# So much that no graph is given up.
MEMORY_MIB = 8192


@dataclass(frozen=True)
class Row:
    """One bucket.

    Attributes:
        bucket: Sequences in the step.
        graphs: How many its steps made: forward pass, sampler.
        capture_s: That capturing all of them took.
        longest_s: The longest of them, which one step waits for.
        graph_bytes: Their memory.
        eager_s: A step kernel by kernel, on the device: as the CPU queues them.
        replay_s: A step from its graphs.
        note: Why figures are missing.
    """

    bucket: int
    graphs: int
    capture_s: float | None = None
    longest_s: float | None = None
    graph_bytes: int | None = None
    eager_s: float | None = None
    replay_s: float | None = None
    note: str | None = None


@dataclass(frozen=True)
class Capture:
    """One capture: seconds, and by how much the memory of graphs grew."""

    seconds: float
    nbytes: int


def run(bench: Bench) -> Generator[Row]:
    """Small buckets first."""
    buckets, context = ((1, 2), 8) if bench.tiny else (BUCKETS, CONTEXT)
    settings = {"graph_memory_mib": MEMORY_MIB} if bench.cuda else {}
    config = engine_config(bench, max_sequences=buckets[-1], max_context=context + 64, **settings)
    runner = load_runner(config)
    try:
        captures = watched(runner)
        for bucket in buckets:
            captures.clear()
            times = list(step_times(runner, bucket, 1, context, STEPS))
            yield row(bucket, times, captures, graphs_of(runner) is not None)
    finally:
        runner.close()


def row(bucket: int, times: list[float], captures: list[Capture], has_graphs: bool) -> Row:
    """The figures of one bucket, from the times of its steps."""
    return Row(
        bucket,
        len(captures),
        capture_s=sum(c.seconds for c in captures) if captures else None,
        longest_s=max(c.seconds for c in captures) if captures else None,
        graph_bytes=sum(c.nbytes for c in captures) if captures else None,
        eager_s=statistics.median(times[EAGER]),
        replay_s=statistics.median(times[REPLAYED]) if captures else None,
        note=None if has_graphs else "no graphs on this device",
    )


def graphs_of(runner: ModelRunner) -> Graphs | None:
    """Those of a runner that has them."""
    found = getattr(runner, "graphs", None)
    assert found is None or isinstance(found, Graphs)
    return found


def watched(runner: ModelRunner) -> list[Capture]:
    """Every capture of ``runner`` from now on, as it happens."""
    graphs, captures = graphs_of(runner), list[Capture]()
    if graphs is not None:
        capture = graphs.capture

        def timed(key: Hashable, work: Callable[[], None]) -> None:
            begin, used = time.perf_counter(), graphs.used
            capture(key, work)
            captures.append(Capture(time.perf_counter() - begin, graphs.used - used))

        graphs.capture = timed  # type: ignore[method-assign]
    return captures


PART = Part("graphs", "What do CUDA graphs cost, and what do they save?", 25.0, Row, run)

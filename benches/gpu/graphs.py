"""What do CUDA graphs cost, and what do they save?

Decode steps of each bucket, first kernel by kernel, then with graphs, captured as they are wanted.
Capturing is timed where the runner asks for it, on the CPU, whose time it is; while it lasts, the
device works on the step before.
"""

import statistics
import time
from collections.abc import Callable, Generator, Hashable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benches.gpu.engines import engine_config
from benches.gpu.part import Bench, Part
from benches.gpu.steps import step_times
from pyengine.model.devices import load_runner
from pyengine.model.runner import ModelRunner
from pyengine.model.torch.device.graphs import Graphs
from pyengine.model.torch.runner import TorchRunner

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CONTEXT = 512
# Steps of each kind, of which the first compile and capture.
STEPS = 32
SETTLED = 20
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
        graphs = graphs_of(runner)
        captures = watched(graphs)
        for bucket in buckets:
            captures.clear()
            with without_graphs(runner):
                eager = list(step_times(runner, bucket, 1, context, STEPS))
            # Not by its truth: that is how many there are.
            has_graphs = graphs is not None
            replayed = list(step_times(runner, bucket, 1, context, STEPS)) if has_graphs else []
            yield row(bucket, eager, replayed, captures)
    finally:
        runner.close()


def row(bucket: int, eager: list[float], replayed: list[float], captures: list[Capture]) -> Row:
    """The figures of one bucket, from the times of its steps."""
    return Row(
        bucket,
        len(captures),
        capture_s=sum(c.seconds for c in captures) if captures else None,
        longest_s=max(c.seconds for c in captures) if captures else None,
        graph_bytes=sum(c.nbytes for c in captures) if captures else None,
        eager_s=statistics.median(eager[SETTLED:]),
        replay_s=statistics.median(replayed[SETTLED:]) if replayed else None,
        note=None if replayed else "no graphs on this device",
    )


def graphs_of(runner: ModelRunner) -> Graphs | None:
    """The graphs of a runner that has graphs."""
    return runner.graphs if isinstance(runner, TorchRunner) else None


@contextmanager
def without_graphs(runner: ModelRunner) -> Iterator[None]:
    """Its steps are queued kernel by kernel."""
    if not isinstance(runner, TorchRunner):
        yield
        return
    kept, runner.graphs = runner.graphs, None
    try:
        yield
    finally:
        runner.graphs = kept


def watched(graphs: Graphs | None) -> list[Capture]:
    """Every capture from now on, as it happens."""
    captures: list[Capture] = []
    if graphs is None:
        return captures
    capture = graphs.capture

    def timed(key: Hashable, work: Callable[[], None]) -> None:
        begin, used = time.perf_counter(), graphs.used
        capture(key, work)
        captures.append(Capture(time.perf_counter() - begin, graphs.used - used))

    graphs.capture = timed  # type: ignore[method-assign]
    return captures


PART = Part("graphs", "What do CUDA graphs cost, and what do they save?", 25.0, Row, run)

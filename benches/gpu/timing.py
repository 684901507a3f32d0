"""How long work takes on a device, without what it costs the CPU to ask for it."""

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

Work = Callable[[], object]

# A graph takes at least so long, so that starting it does not count.
GRAPH_S = 1e-3
MOST_REPEATS = 64
# More than the second-level cache of any GPU: what is used in turn is not found there again.
BEYOND_CACHE_BYTES = 256 << 20


@dataclass(frozen=True)
class Timing:
    """The median of some repetitions.

    Attributes:
        seconds: Of one work.
        captured: Whether it was replayed from a CUDA graph; else the CPU asked for each.
    """

    seconds: float
    captured: bool


def copies(nbytes: int, tiny: bool = False) -> int:
    """Number of buffers to use in turn, so that the cache does not hold them."""
    return 1 if tiny else max(1, min(32, -(-BEYOND_CACHE_BYTES // max(nbytes, 1))))


class Stopwatch:
    """Times work on one device, each figure in about ``budget_s`` seconds."""

    def __init__(self, device: torch.device, budget_s: float) -> None:
        self.device = device
        self.budget_s = budget_s

    def time(self, works: Sequence[Work]) -> Timing:
        """The time of one of ``works``, which are alike and done in turn.

        On a GPU they are captured in a CUDA graph, as the engine's steps are; what cannot be
        captured is launched from here.
        """
        for work in works:
            work()
        if self.device.type != "cuda":
            return Timing(self._on_cpu(works), False)
        self.synchronize()
        once = self._events(lambda: _each(works), 3)[0]
        repeats = max(1, min(MOST_REPEATS, round(GRAPH_S / max(once, 1e-7))))
        graph = _captured(works, repeats)
        if graph is None:
            count = self._count(once)
            return Timing(
                statistics.median(self._events(lambda: _each(works), count)) / len(works), False
            )
        self._events(graph.replay, 2)
        each = self._events(graph.replay, 3)[0]
        times = self._events(graph.replay, self._count(each))
        return Timing(statistics.median(times) / (repeats * len(works)), True)

    def synchronize(self) -> None:
        """Wait for the device."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def _count(self, each_s: float) -> int:
        return max(5, min(1000, round(self.budget_s / max(each_s, 1e-7))))

    def _events(self, work: Work, count: int) -> list[float]:
        """Seconds on the device of each of ``count`` times, least first."""
        marks = [
            tuple(torch.cuda.Event(enable_timing=True) for _ in range(2)) for _ in range(count)
        ]
        for start, end in marks:
            start.record()
            work()
            end.record()
        self.synchronize()
        return sorted(start.elapsed_time(end) * 1e-3 for start, end in marks)

    def _on_cpu(self, works: Sequence[Work]) -> float:
        times: list[float] = []
        end = time.perf_counter() + self.budget_s
        while time.perf_counter() < end or len(times) < 3:
            start = time.perf_counter()
            _each(works)
            times.append((time.perf_counter() - start) / len(works))
        return statistics.median(times)


def _each(works: Sequence[Work]) -> None:
    for work in works:
        work()


def _captured(works: Sequence[Work], repeats: int) -> torch.cuda.CUDAGraph | None:
    """A graph of ``works``, repeated; None where one of them cannot be captured."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        _each(works)
    torch.cuda.current_stream().wait_stream(side)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    try:
        with torch.cuda.graph(graph):
            for _ in range(repeats):
                _each(works)
    except RuntimeError:
        torch.cuda.synchronize()
        return None
    return graph

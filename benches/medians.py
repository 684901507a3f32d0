"""How long small works take: medians over as many runs as a time allows."""

import statistics
import time
from collections.abc import Callable


def median_us(work: Callable[[], object], seconds: float) -> float:
    """Median microseconds of ``work``, run for ``seconds`` and five times at least."""
    work()
    times: list[float] = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end or len(times) < 5:
        start = time.perf_counter_ns()
        work()
        times.append((time.perf_counter_ns() - start) / 1e3)
    return statistics.median(times)

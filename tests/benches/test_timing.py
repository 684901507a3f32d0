"""The stopwatch of GPUs, on one that is made up: its clock goes on by what work says it takes."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from benches.gpu.timing import BEYOND_CACHE_BYTES, Stopwatch, copies


class Device:
    """A clock in seconds, and the graph that is being captured, if any."""

    def __init__(self) -> None:
        self.clock = 0.0
        self.capturing: list[float] | None = None
        self.replays = 0

    def work(self, seconds: float) -> Callable[[], None]:
        def work() -> None:
            if self.capturing is None:
                self.clock += seconds
            else:
                self.capturing.append(seconds)

        return work

    def event(self, enable_timing: bool) -> Any:
        event = SimpleNamespace(at=0.0)
        event.record = lambda: setattr(event, "at", self.clock)
        event.elapsed_time = lambda later: (later.at - event.at) * 1e3
        return event

    def graph(self) -> Any:
        graph = SimpleNamespace(works=[])

        def replay() -> None:
            self.replays += 1
            self.clock += sum(graph.works)

        graph.replay = replay
        return graph

    @contextmanager
    def capture(self, graph: Any) -> Iterator[None]:
        self.capturing = graph.works
        try:
            yield
        finally:
            self.capturing = None


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    stream = SimpleNamespace(wait_stream=lambda other: None)
    for name, fake in {
        "Event": made.event,
        "CUDAGraph": made.graph,
        "graph": made.capture,
        "Stream": lambda: stream,
        "current_stream": lambda: stream,
        "stream": lambda s: nullcontext(),
        "synchronize": lambda *device: None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return made


@pytest.mark.parametrize("seconds", [2e-6, 3e-4, 0.02])
@pytest.mark.parametrize("kinds", [1, 5])
def test_one_work_of_a_graph_of_many(device: Device, seconds: float, kinds: int) -> None:
    timing = Stopwatch(torch.device("cuda"), 0.05).time([device.work(seconds)] * kinds)
    assert timing.captured
    assert timing.seconds == pytest.approx(seconds)
    assert device.replays >= 5
    # About the budget, and no more than its fewest repetitions where work is long.
    assert device.clock < max(0.5, 60 * seconds * kinds)


def test_work_that_cannot_be_captured_is_launched(device: Device) -> None:
    work = device.work(1e-3)

    def waits() -> None:
        if device.capturing is not None:
            raise RuntimeError("operation not permitted when stream is capturing")
        work()

    timing = Stopwatch(torch.device("cuda"), 0.05).time([waits, waits])
    assert not timing.captured
    assert timing.seconds == pytest.approx(1e-3)
    assert device.replays == 0


def test_the_cpu_needs_no_events() -> None:
    calls: list[int] = []
    timing = Stopwatch(torch.device("cpu"), 0.0).time([lambda: calls.append(1)] * 2)
    assert timing.seconds > 0
    assert not timing.captured
    assert len(calls) >= 8


def test_buffers_in_turn_are_more_than_the_cache() -> None:
    assert copies(1 << 30) == 1
    assert copies(100 << 20) == 3
    assert copies(100 << 20) * (100 << 20) >= BEYOND_CACHE_BYTES
    assert copies(1) == copies(0) == 32
    assert copies(1, tiny=True) == 1

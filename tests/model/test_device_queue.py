"""Queues and marks; of CUDA's, in which order it is called, with a CUDA that remembers."""

import gc
from typing import Any

import pytest
import torch

from pyengine.model.torch.device.queue import CpuQueue, CudaCapturer, CudaMark, HostMark

POOL = (0, 7)


class FakeGraph:
    """Records its calls."""

    made: list["FakeGraph"] = []  # noqa: RUF012 - of one test

    def __init__(self) -> None:
        self.log: list[Any] = []
        FakeGraph.made.append(self)

    def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
        assert pool == POOL
        assert not torch.is_inference_mode_enabled()
        self.log.append(capture_error_mode)

    def capture_end(self) -> None:
        self.log.append("end")
        if "spoilt" in self.log:
            raise RuntimeError("the capture is invalid")


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What is asked of the allocator."""
    FakeGraph.made.clear()
    told: list[str] = []

    def end(device: int, pool: tuple[int, int]) -> None:
        told.append("end")
        if "spoilt" not in FakeGraph.made[-1].log:
            raise RuntimeError("not currently recording to mempool_id")

    def release(device: int, pool: tuple[int, int]) -> None:
        told.append("release")

    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "graph_pool_handle", lambda: POOL)
    monkeypatch.setattr(torch._C, "_cuda_endAllocateToPool", end, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_releasePool", release, raising=False)
    free = iter((1000, 960, 900, 910))
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (next(free), 2000))
    return told


def test_a_capture_is_measured_and_nothing_is_freed_in_it(cuda: list[str]) -> None:
    collecting = []

    def work() -> None:
        assert torch.is_inference_mode_enabled()
        collecting.append(gc.isenabled())

    with torch.inference_mode():
        graph, size = CudaCapturer().capture(work)
    assert isinstance(graph, FakeGraph)
    assert graph.log == ["thread_local", "end"]
    assert (collecting, gc.isenabled(), size) == ([False], True, 40)
    assert CudaCapturer().capture(lambda: None)[1] == 0  # others gave memory back meanwhile
    assert cuda == []


@pytest.mark.parametrize("raises", [True, False])
def test_error_that_spoils_a_capture_is_raised(raises: bool, cuda: list[str]) -> None:
    def work() -> None:
        FakeGraph.made[0].log.append("spoilt")
        if raises:
            raise ValueError("no such operation in a graph")

    with pytest.raises(ValueError if raises else RuntimeError, match=r"no such|is invalid"):
        CudaCapturer().capture(work)
    assert FakeGraph.made[0].log == ["thread_local", "spoilt", "end"]
    assert gc.isenabled()
    assert cuda == ["end", "release"]  # which torch left out


def test_python_error_in_a_capture_leaves_nothing_to_undo(cuda: list[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        CudaCapturer().capture(lambda: print(1 // 0))
    assert FakeGraph.made[0].log == ["thread_local", "end"]
    assert cuda == ["end"]


@pytest.mark.parametrize("there", [True, False])
def test_a_mark_says_whether_it_was_waited_for(
    there: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log: list[Any] = []

    class FakeEvent:
        def __init__(self, **settings: bool) -> None:
            log.append(settings)

        def record(self) -> None:
            log.append("record")

        def query(self) -> bool:
            return there

        def synchronize(self) -> None:
            log.append("synchronize")

        def elapsed_time(self, later: "FakeEvent") -> float:
            return 1.5

    monkeypatch.setattr(torch.cuda, "Event", FakeEvent)
    mark = CudaMark()
    assert mark.wait() is not there
    assert mark.elapsed_time(CudaMark()) == 1.5
    # An error of the device comes out of a wait, so there is one in any case.
    assert log[:3] == [{"enable_timing": True, "blocking": True}, "record", "synchronize"]


def test_on_the_cpu_marks_have_come() -> None:
    queue = CpuQueue()
    with queue.working():
        assert torch.is_inference_mode_enabled()
        one, two = queue.mark(), queue.mark()
    assert not torch.is_inference_mode_enabled()
    assert isinstance(one, HostMark)
    assert not one.wait()
    assert 0 <= one.elapsed_time(two) < 1000
    assert queue.host_memory(9).tolist() == [0] * 9
    queue.finish()

"""The queue of a device: host memory, marks of time, and where work is queued.

On a GPU work is queued on one stream of the engine's and done in its order, while the CPU goes on;
on the CPU it is done at once.
"""

import gc
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from typing import Any, Protocol

import torch

from pyengine.model.torch.device.clock import Mark
from pyengine.model.torch.device.graphs import Graph


class EventMark(Mark, Protocol):
    """A mark that can be waited for."""

    def has_come(self) -> bool:
        """Whether it has, without a wait."""

    def wait(self) -> bool:
        """Return when it has come, without the GIL meanwhile; whether there was a wait.

        Raises:
            Exception: What was queued before it went wrong.
        """


class DeviceQueue(Protocol):
    """The queue of a runner's work on a device. One thread at a time.

    Attributes:
        device: What it is done on.
        overlap: Steps that may be queued beside the one that is waited for.
    """

    device: torch.device
    overlap: int

    def working(self) -> AbstractContextManager[None]:
        """A context: the work that is called inside is queued here."""

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """Zeros on the host, uint8 [nbytes], from and to which copies do not hold up the CPU."""

    def mark(self) -> EventMark:
        """The moment at which everything queued so far is done."""

    def finish(self) -> None:
        """Wait until all work of the device is done, on this queue and others."""

    def probe(self) -> None:
        """Let the device do a little work, and wait for it.

        Raises:
            Exception: It does none any more.
        """

    def release(self) -> None:
        """Give unused device memory back to other processes."""


class HostMark:
    """A moment of the host's clock."""

    def __init__(self) -> None:
        self.ns = time.monotonic_ns()

    def elapsed_time(self, later: "HostMark", /) -> float:
        """Milliseconds."""
        return (later.ns - self.ns) * 1e-6

    def has_come(self) -> bool:
        """True: a CPU's work is done when it is queued."""
        return True

    def wait(self) -> bool:
        """Returns at once."""
        return False


class CpuQueue:
    """The CPU: what is asked for is done at once.

    Attributes:
        device: The CPU.
        overlap: 0.
    """

    overlap = 0

    def __init__(self) -> None:
        self.device = torch.device("cpu")

    def working(self) -> AbstractContextManager[None]:
        """See :class:`DeviceQueue`."""
        return torch.inference_mode()

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """See :class:`DeviceQueue`."""
        return torch.zeros(nbytes, dtype=torch.uint8)

    def mark(self) -> HostMark:
        """See :class:`DeviceQueue`."""
        return HostMark()

    def finish(self) -> None:
        """Returns at once."""

    def probe(self) -> None:
        """The CPU works."""

    def release(self) -> None:
        """Does nothing: torch gives memory back by itself."""


class CudaMark:
    """An event of CUDA, recorded on the current stream."""

    def __init__(self) -> None:
        # A thread that waits for it sleeps: the rest of the engine has work for the core.
        self._event: Any = torch.cuda.Event(enable_timing=True, blocking=True)  # type: ignore[no-untyped-call]
        self._event.record()

    def elapsed_time(self, later: "CudaMark", /) -> float:
        """Milliseconds; both have come."""
        milliseconds: float = self._event.elapsed_time(later._event)
        return milliseconds

    def has_come(self) -> bool:
        """See :class:`EventMark`."""
        come: bool = self._event.query()
        return come

    def wait(self) -> bool:
        """See :class:`EventMark`."""
        there = self.has_come()
        self._event.synchronize()
        return not there


def probe(device: torch.device) -> None:
    """Let ``device`` do a little work, and wait for it; nothing is captured meanwhile.

    After an illegal address, a failed assertion or an ECC error CUDA refuses every further call of
    the process. Memory that is out is no such error.

    Raises:
        Exception: The device does no work any more.
    """
    if device.type != "cuda":
        return
    torch.cuda.synchronize(device)
    with suppress(torch.OutOfMemoryError):
        torch.ones(1, device=device).cpu()


class _Working:
    """Inference mode and the stream, entered together: once or twice a step."""

    def __init__(self, stream: torch.cuda.Stream) -> None:
        self._stream = stream
        self._entered: list[tuple[Any, Any]] = []

    def __enter__(self) -> None:
        mode, stream = torch.inference_mode(), torch.cuda.stream(self._stream)
        mode.__enter__()
        stream.__enter__()  # type: ignore[no-untyped-call]
        self._entered.append((mode, stream))

    def __exit__(self, *error: Any) -> None:
        mode, stream = self._entered.pop()
        stream.__exit__(*error)
        mode.__exit__(*error)


class CudaQueue:
    """A stream of a GPU.

    Attributes:
        device: The GPU.
        overlap: 1: a step is planned and queued while the one before it runs.
    """

    overlap = 1

    def __init__(self, device: torch.device) -> None:
        """A stream of its own on ``device``; it waits for nothing that is on others."""
        self.device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._working = _Working(self._stream)

    def working(self) -> AbstractContextManager[None]:
        """See :class:`DeviceQueue`."""
        return self._working

    def host_memory(self, nbytes: int) -> torch.Tensor:
        """See :class:`DeviceQueue`."""
        return torch.zeros(nbytes, dtype=torch.uint8, pin_memory=True)

    def mark(self) -> CudaMark:
        """See :class:`DeviceQueue`."""
        return CudaMark()

    def finish(self) -> None:
        """See :class:`DeviceQueue`."""
        torch.cuda.synchronize(self.device)

    def probe(self) -> None:
        """See :class:`DeviceQueue`."""
        probe(self.device)

    def release(self) -> None:
        """See :class:`DeviceQueue`."""
        torch.cuda.empty_cache()


class CudaCapturer:
    """Captures what is queued on the current stream.

    See :class:`pyengine.model.torch.device.graphs.Capturer`.

    It is the stream that steps were queued on already, so that what libraries allocate for a stream
    is there, and graphs take little beside their nodes. Neither waits for the device: a step may be
    running.
    """

    def capture(self, work: Callable[[], None]) -> tuple[Graph, int]:
        """See :class:`pyengine.model.torch.device.graphs.Capturer`."""
        before, _ = torch.cuda.mem_get_info()
        graph: Any = torch.cuda.CUDAGraph()
        pool = torch.cuda.graph_pool_handle()
        collects = gc.isenabled()
        # A garbage collection may free memory that must not be freed while this thread captures.
        gc.disable()
        try:
            # torch makes the tensors of its random numbers with the first graph of a process, and
            # writes them for all: tensors of inference mode would fail every later capture.
            with torch.inference_mode(False):
                # Other threads may call CUDA meanwhile: what they do does not spoil the capture.
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
            try:
                work()
            except BaseException:
                with suppress(Exception):  # it is spoilt; what spoilt it is what counts
                    graph.capture_end()
                raise
            graph.capture_end()
        except BaseException:
            _give_back(pool)
            raise
        finally:
            if collects:
                gc.enable()
        after, _ = torch.cuda.mem_get_info()
        return graph, max(before - after, 0)


def _give_back(pool: Any) -> None:
    """End allocations for a graph that could not be captured.

    Up to torch 2.12 a capture that CUDA ends with an error stays under way for the allocator, which
    then frees nothing any more, or ends the process where it should (pytorch/pytorch#180395).
    """
    device = torch.cuda.current_device()
    with suppress(RuntimeError):  # where torch did so itself
        torch._C._cuda_endAllocateToPool(device, pool)
        torch._C._cuda_releasePool(device, pool)

"""A step in flight on a torch device, and its memory on the host."""

import time
from collections.abc import Callable
from typing import Protocol

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.device.graphs import Key
from pyengine.model.torch.device.queue import DeviceQueue, EventMark


class StepOwner(Protocol):
    """The runner that launched a step."""

    def sample(self, step: "TorchStep") -> None:
        """Queue the sampling of the step's tokens."""

    def wait(self, step: "TorchStep") -> StepBuffers:
        """Wait for the step's results."""


class HostSet:
    """Host memory of one step and its results; several sets take turns.

    Attributes:
        memory: uint8 [layout.nbytes], the buffers' memory.
        buffers: The planned step.
    """

    def __init__(self, layout: StepLayout, queue: DeviceQueue) -> None:
        self.memory = queue.host_memory(layout.nbytes)
        self.buffers = StepBuffers(layout, self.memory.numpy())


class TorchStep:
    """A step in flight; see :class:`pyengine.model.runner.StepHandle`.

    Attributes:
        start_ns: When the device began it; 0, like the next two, until :meth:`wait` has returned.
        end_ns: When the device ended it.
        waited_ns: From when to when the device waited for masks and penalties.
        index: Number of its host set.
        host_set: Its memory on the host.
        buffers: The planned step.
        launched_ns: ``time.monotonic_ns()`` before anything of it was queued.
        start: Before its first work.
        forwarded: Behind its forward pass, if masks or penalties come late.
        completed: When masks and penalties were filled.
        end: Behind its last work.
        capture: Key and work of a part of the step that is captured in a graph once all of the step
            is queued.
    """

    def __init__(self, runner: StepOwner, index: int, host_set: HostSet) -> None:
        """In flight from now on, in ``host_set``."""
        self._runner = runner
        self.index = index
        self.host_set = host_set
        self.buffers = host_set.buffers
        self.start_ns = self.end_ns = 0
        self.waited_ns = (0, 0)
        self.launched_ns = time.monotonic_ns()
        self.start: EventMark | None = None
        self.forwarded: EventMark | None = None
        self.completed: EventMark | None = None
        self.end: EventMark | None = None
        self.capture: tuple[Key, Callable[[], None]] | None = None

    def sample(self) -> None:
        """Queue the sampling of its tokens."""
        self._runner.sample(self)

    def wait(self) -> StepBuffers:
        """Wait for its results; returns its buffers, which have them."""
        return self._runner.wait(self)

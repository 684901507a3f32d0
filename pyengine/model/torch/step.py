"""A step in flight on a torch device, and what it has on the host."""

import time
from collections.abc import Callable
from typing import Protocol

import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import Sampled
from pyengine.model.torch.graphs import Key
from pyengine.model.torch.queue import DeviceQueue, EventMark
from pyengine.model.torch.results import Results


class Sampling(Protocol):
    """Who launched a step."""

    def sample(self, step: "TorchStep") -> None:
        """Queue the choice of its tokens."""

    def wait(self, step: "TorchStep") -> Sampled:
        """Its tokens, when they are there."""


class HostSet:
    """One of the sets that take turns: buffers to plan into, and a place for what comes back.

    Attributes:
        memory: uint8 [layout.nbytes], the buffers' memory.
        buffers: What is planned.
        results: What was sampled.
    """

    def __init__(self, layout: StepLayout, queue: DeviceQueue) -> None:
        self.memory = queue.host_memory(layout.nbytes)
        self.buffers = StepBuffers(layout, self.memory.numpy())
        memory = queue.host_memory(4 * Results.size(layout))
        self.results = Results(layout, memory.view(torch.int32))


class TorchStep:
    """A step in flight; see :class:`pyengine.model.runner.StepHandle`.

    Attributes:
        start_ns: When the device began it; 0, like the others, until it was waited for.
        end_ns: And ended it.
        waited_ns: From when to when it waited for its masks and penalties.
        index: Number of its set.
        home: Its set.
        buffers: What was planned.
        launched_ns: ``time.monotonic_ns()`` before anything of it was queued.
        start: Before its first work.
        forwarded: Behind its forward pass, if masks or penalties come late.
        completed: When these were there.
        end: Behind its last work.
        capture: A part of it that is to be captured in a graph when all of it is queued: key and
            work.
    """

    def __init__(self, runner: Sampling, index: int, home: HostSet) -> None:
        """In flight from now on, in ``home``."""
        self._runner = runner
        self.index = index
        self.home = home
        self.buffers = home.buffers
        self.start_ns = self.end_ns = 0
        self.waited_ns = (0, 0)
        self.launched_ns = time.monotonic_ns()
        self.start: EventMark | None = None
        self.forwarded: EventMark | None = None
        self.completed: EventMark | None = None
        self.end: EventMark | None = None
        self.capture: tuple[Key, Callable[[], None]] | None = None

    def sample(self) -> None:
        """Queue the choice of its tokens."""
        self._runner.sample(self)

    def wait(self) -> Sampled:
        """Its tokens, when they are there."""
        return self._runner.wait(self)

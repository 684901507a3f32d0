"""Counts of the rows that experts got, copied from a device without holding up its steps.

::

    report      read ─ nothing in flight: copy, wait ──────────────► as of now
                     └ a step in flight: what the last copy brought ► as of the report before
                                         copy, behind the step
"""

from collections.abc import Mapping
from typing import Protocol

import torch

from pyengine.model.torch.device.queue import DeviceQueue, EventMark
from pyengine.telemetry.experts import ExpertLoad


class CountedExperts(Protocol):
    """The experts of a layer."""

    @property
    def routed(self) -> torch.Tensor:
        """int64 [all experts] on the device, tokens that were sent to each so far."""


class ExpertCounts:
    """The counts of all layers with experts, in host memory. One thread at a time."""

    def __init__(self, layers: Mapping[int, CountedExperts], queue: DeviceQueue) -> None:
        """Counts for ``layers``, given by number; copies go on ``queue``."""
        self._layers = list(layers.items())
        self._queue = queue
        sizes = [len(layer.routed) for _, layer in self._layers]
        # Page-locked memory of 0 bytes is none.
        memory = queue.host_memory(8 * sum(sizes)) if sizes else torch.empty(0, dtype=torch.uint8)
        self._copies = torch.split(memory.view(torch.int64), sizes) if sizes else ()
        self._before = [[0] * size for size in sizes]
        self._last = [[0] * size for size in sizes]
        self._mark: EventMark | None = None

    def forget(self) -> None:
        """Count from now on; nothing is in flight."""
        self._copy().wait()
        self._take()
        self._before, self._last = self._last, [[0] * len(each) for each in self._last]

    def read(self, *, idle: bool) -> list[ExpertLoad]:
        """The counts: of now if the device is ``idle``, else of when they were last copied.

        Raises:
            Exception: The device failed.
        """
        if not self._layers:
            return []
        if idle:
            self._copy().wait()
            self._take()
        else:
            if self._mark is not None and self._mark.has_come():
                self._take()
            if self._mark is None:
                self._mark = self._copy()
        return [
            ExpertLoad(layer, counts)
            for (layer, _), counts in zip(self._layers, self._last, strict=True)
        ]

    def _copy(self) -> EventMark:
        with self._queue.working():
            for (_, layer), copy in zip(self._layers, self._copies, strict=True):
                copy.copy_(layer.routed, non_blocking=True)
            return self._queue.mark()

    def _take(self) -> None:
        self._mark = None
        self._last = [
            [now - then for now, then in zip(copy.tolist(), before, strict=True)]
            for copy, before in zip(self._copies, self._before, strict=True)
        ]

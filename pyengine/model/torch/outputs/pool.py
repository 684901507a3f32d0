"""Sums of last hidden states on torch devices, for the rows of a step that pool."""

from typing import Protocol

import torch

from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.queue import DeviceQueue


class StateModel(Protocol):
    """The model of a runner, as far as pooling needs it."""

    rows_per_call: int

    def states(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Last hidden states [rows, hidden_size] of ``pool_token[first : first + rows]``."""


class TorchPool:
    """Sums the states of the steps in one :class:`DeviceStep`. One thread at a time.

    Sums are in float32 and, row by row, in the order of the tokens: the same bits every time.
    Memory is taken with the first step that pools. Nothing is read back.
    """

    def __init__(self, step: DeviceStep, max_rows: int, width: int, queue: DeviceQueue) -> None:
        """For steps in ``step`` of at most ``max_rows`` rows, and states of ``width`` numbers."""
        self._step = step
        self._shape = max_rows, width
        self._queue = queue
        self._sums: torch.Tensor | None = None

    def queue(self, model: StateModel, host: torch.Tensor | None) -> torch.Tensor:
        """Queue the sums of the step in flight, whose forward pass is queued, and their copy.

        Args:
            model: Has computed the step.
            host: float32 [max_rows, width] on the host, which takes the sums; None for new memory.

        Returns:
            ``host``, or the new memory.
        """
        step, device = self._step, self._step.memory.device
        rows, tokens = step.host.num_pooled_rows, step.host.num_pooled_tokens
        if self._sums is None:
            self._sums = torch.zeros(self._shape, device=device)
        if host is None:
            memory = self._queue.host_memory(4 * self._shape[0] * self._shape[1])
            host = memory.view(torch.float32).view(self._shape)
        sums, starts = self._sums[:rows], step.pool_start[: rows + 1].long()
        sums.zero_()
        for first in range(0, tokens, model.rows_per_call):
            count = min(model.rows_per_call, tokens - first)
            states = model.states(step, count, first).float()
            # Rows before and behind this piece have no tokens in it, and a sum of 0.
            offsets = starts.clamp(first, first + count) - first
            sums += torch.segment_reduce(states, "sum", offsets=offsets, axis=0, unsafe=True)
        host[:rows].copy_(sums, non_blocking=True)
        return host

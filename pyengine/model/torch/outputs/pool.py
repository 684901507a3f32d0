"""Sums of last hidden states on torch devices, for the rows of a step that pool."""

from typing import Protocol

import torch

from pyengine.model.torch.device.device_step import DeviceStep


class StateModel(Protocol):
    """The model of a runner, as far as pooling needs it."""

    rows_per_call: int

    def states(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Last hidden states [rows, hidden_size] of ``pool_token[first : first + rows]``."""


def pool(model: StateModel, step: DeviceStep) -> None:
    """Queue the sums of the states of the rows of ``step`` that pool; its forward pass is queued.

    Sums are in float32 and, row by row, in the order of the tokens: the same bits every time.
    """
    rows, tokens = step.host.num_pooled_rows, step.host.num_pooled_tokens
    sums, starts = step.pooled[:rows], step.pool_start[: rows + 1].long()
    sums.zero_()
    for first in range(0, tokens, model.rows_per_call):
        count = min(model.rows_per_call, tokens - first)
        states = model.states(step, count, first).float()
        # Rows before and behind this piece have no tokens in it, and a sum of 0.
        offsets = starts.clamp(first, first + count) - first
        sums += torch.segment_reduce(states, "sum", offsets=offsets, axis=0, unsafe=True)

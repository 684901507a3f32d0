"""Mixtures of experts in torch.

A step must never ask the device what it computed, so that a graph can capture it: rows are sorted
by expert on the device, and a grouped product takes the borders between them from the device, too.
Ranks share every expert, or each has some of them as a whole: rows that belong to others come last,
where no product reaches, and what lies there counts for nothing.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.model.architectures.experts import ExpertWeights, Routing
from pyengine.model.architectures.parts import Activation, Buffer
from pyengine.model.torch.ops import TorchOps
from pyengine.model.torch.transfer import Transfer


def has_grouped_mm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has a grouped product of its own for a GPU, which waits for nothing.

    In other types, and on older GPUs, it computes group by group, and waits for the borders.
    """
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


@dataclass(frozen=True)
class GroupedLinear:
    """A linear layer of each expert.

    Attributes:
        ops: Of the device.
        weight: [experts, out, in].
        bias: [experts, out], or None.
        by_torch: The product is torch's own; see :func:`has_grouped_mm`.
    """

    ops: TorchOps
    weight: torch.Tensor
    bias: torch.Tensor | None
    by_torch: bool

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Each row through its expert: [rows, in] -> [rows, out].

        Args:
            x: Rows, sorted by expert.
            experts: The expert of each row, [rows]; those behind the last one have no result.
            ends: Where the rows of each expert end, int32 [experts].
        """
        if not self.by_torch:
            out = x.new_empty(len(x), self.weight.shape[1])
            self.ops.grouped(x, self.weight, self.bias, ends, out)
            return out
        out = torch.nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=ends)
        if self.bias is None:
            return out
        return out + self.bias[experts.clamp(max=len(self.bias) - 1)]


class TorchExperts:
    """The experts of a layer: this rank's share of each, or its own.

    Attributes:
        routed: int64 [all experts], tokens that were sent to each so far.
    """

    def __init__(
        self,
        group: Group,
        ops: TorchOps,
        routing: Routing,
        weights: ExpertWeights,
        activation: Activation,
        transfer: Transfer,
        live: torch.Tensor,
    ) -> None:
        """Copy the weights.

        Args:
            group: The ranks that share the model.
            ops: Of the device.
            routing: How tokens are sent to experts.
            weights: Of this rank.
            activation: Of the gates.
            transfer: Brings weights to the device.
            live: int64 [1] there, the tokens of a step, without those that fill up a graph's.
        """
        weights = weights.added_by(group.rank)
        gate_up, down = (transfer.matrices(each) for each in (weights.gate_up, weights.down))
        by_torch = has_grouped_mm(down.device, down.dtype)
        self._group = group
        self._ops = ops
        self._routing = routing
        self._gate_up = GroupedLinear(
            ops, gate_up, _stacked(weights.gate_up_bias, transfer), by_torch
        )
        self._down = GroupedLinear(ops, down, _stacked(weights.down_bias, transfer), by_torch)
        self._activation = activation
        float32 = torch.float32
        bias, scales = weights.choice_bias, weights.scales
        self._bias = None if bias is None else transfer.vector(bias, float32)
        self._scales = None if scales is None else transfer.vector(scales, float32)
        self._first = weights.first
        self._divided = weights.divided
        self._live = live
        self._numbers = torch.arange(len(down), dtype=torch.int32, device=down.device)
        self.routed = torch.zeros(weights.count, dtype=torch.int64, device=down.device)

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""
        given, to = x.tensor[:rows], out.tensor[:rows]
        experts, weights = self._route(logits.tensor[:rows])
        to.copy_(self._computed(given, experts, weights))
        self._group.all_reduce(to)

    def _route(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Of each row, its experts here and their weights, [rows, chosen] both.

        Experts elsewhere have the number behind the last one, and a weight of 0.
        """
        routing = self._routing
        experts = torch.empty(len(logits), routing.chosen, dtype=torch.int32, device=logits.device)
        weights = experts.new_empty(experts.shape, dtype=torch.float32)
        self._ops.route(
            logits,
            experts,
            weights,
            self.routed,
            self._live,
            sigmoid=routing.sigmoid,
            normalized=routing.normalized,
            scale=routing.scale,
            groups=routing.groups,
            chosen_groups=routing.chosen_groups,
            bias=self._bias,
            scales=self._scales,
        )
        if self._divided:
            experts -= self._first
            elsewhere = (experts < 0) | (experts >= len(self._numbers))
            experts.masked_fill_(elsewhere, len(self._numbers))
            weights.masked_fill_(elsewhere, 0.0)
        return experts, weights

    def _computed(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        """[rows, hidden], float32."""
        rows, chosen = experts.shape
        of_rows, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(of_rows, self._numbers, right=True, out_int32=True)
        given = x[order // chosen]
        if self._routing.weighs_inputs:
            given = (given * weights.flatten()[order, None]).to(x.dtype)
            weights = torch.ones_like(weights)
        inner = self._active(self._gate_up(given, of_rows, ends))
        results = self._down(inner, of_rows, ends)
        by_row = torch.empty_like(results)
        by_row[order] = results
        by_choice = by_row.view(rows, chosen, -1).float()
        if self._divided:
            # What no product has written may be anything, and NaN times 0 is NaN.
            elsewhere = (experts == len(self._numbers))[:, :, None]
            by_choice.masked_fill_(elsewhere, 0.0)
        return (by_choice * weights[:, :, None]).sum(1)

    def _active(self, gates: torch.Tensor) -> torch.Tensor:
        inner = gates.new_empty(len(gates), gates.shape[1] // 2)
        self._ops.gated(gates, inner, self._activation.kind, self._activation.limit)
        return inner


def _stacked(biases: Sequence[NDArray[Any]], transfer: Transfer) -> torch.Tensor | None:
    return torch.stack([transfer.vector(bias) for bias in biases]) if biases else None

"""Mixtures of experts on torch devices.

A step must allocate little and never ask the device what it computed, so that a graph can capture
it: rows are sorted by expert on the device, and a grouped product takes the borders between them
from the device, too. Where torch has no such product for a device or type, every expert computes
all rows, and those that did not choose it weigh 0: a reference, made for tests.
"""

from collections.abc import Sequence

import torch

from pyengine.distributed.group import Group
from pyengine.model.architectures.parts import Activation, Buffer, Routing
from pyengine.model.torch.ops import TorchOps


class TorchExperts:
    """The experts of a layer, this rank's share of each."""

    def __init__(
        self,
        group: Group,
        ops: TorchOps,
        routing: Routing,
        gate_up: Sequence[torch.Tensor],
        down: Sequence[torch.Tensor],
        activation: Activation,
        bias: torch.Tensor | None,
    ) -> None:
        self._group = group
        self._ops = ops
        self._routing = routing
        self._gate_up = list(gate_up)
        self._down = list(down)
        self._activation = activation
        self._bias = bias
        self._stacked: tuple[torch.Tensor, torch.Tensor] | None = None

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""
        given, to = x.tensor[:rows], out.tensor[:rows]
        experts, weights = route(logits.tensor[:rows].float(), self._routing, self._bias)
        if given.is_cuda and given.dtype == torch.bfloat16:
            to.copy_(self._grouped(given, experts, weights))
        else:
            to.copy_(self._each(given, experts, weights))
        self._group.all_reduce(to)

    def _each(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index, (gate_up, down) in enumerate(zip(self._gate_up, self._down, strict=True)):
            weight = (weights * (experts == index)).sum(1, keepdim=True)  # [rows, 1]
            total += weight * (self._active(x @ gate_up.t()) @ down.t()).float()
        return total

    def _grouped(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        rows, chosen = experts.shape
        if self._stacked is None:
            # Once the weights are there; the single ones would take the memory a second time.
            self._stacked = torch.stack(self._gate_up), torch.stack(self._down)
            self._gate_up, self._down = list(self._stacked[0]), list(self._stacked[1])
        gate_up, down = self._stacked
        order = experts.flatten().argsort(stable=True)
        counts = torch.zeros(len(gate_up), dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, experts.flatten(), torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        product = torch.nn.functional.grouped_mm
        gates = product(x[order // chosen], gate_up.transpose(1, 2), offs=ends)
        results = product(self._active(gates), down.transpose(1, 2), offs=ends)
        by_row = torch.empty_like(results)
        by_row[order] = results
        weighted = by_row.view(rows, chosen, -1).float() * weights[:, :, None]
        return weighted.sum(1)

    def _active(self, gates: torch.Tensor) -> torch.Tensor:
        inner = gates.new_empty(len(gates), gates.shape[1] // 2)
        self._ops.gated(gates, inner, self._activation.kind, self._activation.limit)
        return inner


def route(
    logits: torch.Tensor, routing: Routing, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The experts of each row, in their order, and their weights: [rows, chosen] both.

    ``logits`` is float32 [rows, experts].
    """
    scores = logits.sigmoid() if routing.sigmoid else logits.softmax(1)
    ranks = scores if bias is None else scores + bias.float()
    if routing.groups > 1:
        by_group = ranks.view(len(ranks), routing.groups, -1)
        worth = by_group.topk(2, dim=2).values.sum(2)
        best = worth.topk(routing.chosen_groups, dim=1).indices
        closed = torch.ones_like(worth, dtype=torch.bool).scatter_(1, best, value=False)
        ranks = by_group.masked_fill(closed[:, :, None], float("-inf")).flatten(1)
    experts = ranks.topk(routing.chosen, dim=1).indices.sort(dim=1).values
    weights = scores.gather(1, experts)
    if routing.normalized:
        weights = weights / (weights.sum(1, keepdim=True) + 1e-20)
    return experts, weights * routing.scale

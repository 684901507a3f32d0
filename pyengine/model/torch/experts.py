"""Mixtures of experts on torch devices.

A step must allocate little and never ask the device what it computed, so that a graph can capture
it: rows are sorted by expert on the device, and a grouped product takes the borders between them
from the device, too. Where torch has no such product for a device or type, every expert computes
all rows, and those that did not choose it weigh 0: a reference, made for tests.
"""

from collections.abc import Sequence

import torch

from pyengine.distributed.group import Group
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.parts import Activation, Buffer
from pyengine.model.torch.ops import TorchOps


class GroupedLinear:
    """A linear layer of each expert."""

    def __init__(self, weights: Sequence[torch.Tensor], biases: Sequence[torch.Tensor]) -> None:
        """Layers of ``weights`` [out, in] and ``biases`` [out] each, or of no biases at all."""
        self._weights = list(weights)
        self._biases = list(biases)
        self._stacked: tuple[torch.Tensor, torch.Tensor | None] | None = None

    def __len__(self) -> int:
        return len(self._weights)

    def one(self, expert: int, x: torch.Tensor) -> torch.Tensor:
        """All rows through one expert: [rows, in] -> [rows, out]."""
        bias = self._biases[expert] if self._biases else None
        return torch.nn.functional.linear(x, self._weights[expert], bias)

    def sorted(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Each row through its expert: [rows, in] -> [rows, out].

        Args:
            x: Rows, sorted by expert.
            experts: The expert of each row, [rows].
            ends: Where the rows of each expert end, int32 [experts].
        """
        if self._stacked is None:
            # Once the weights are there; the single ones would take the memory a second time.
            biases = torch.stack(self._biases) if self._biases else None
            self._stacked = torch.stack(self._weights), biases
            self._weights = list(self._stacked[0])
        weights, biases = self._stacked
        out = torch.nn.functional.grouped_mm(x, weights.transpose(1, 2), offs=ends)
        return out if biases is None else out + biases[experts]


class TorchExperts:
    """The experts of a layer, this rank's share of each."""

    def __init__(
        self,
        group: Group,
        ops: TorchOps,
        routing: Routing,
        gate_up: GroupedLinear,
        down: GroupedLinear,
        activation: Activation,
        bias: torch.Tensor | None,
        scales: torch.Tensor | None,
    ) -> None:
        self._group = group
        self._ops = ops
        self._routing = routing
        self._gate_up = gate_up
        self._down = down
        self._activation = activation
        self._bias = bias
        self._scales = scales

    def __call__(self, logits: Buffer, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, experts], [rows, hidden] -> ``out`` [rows, hidden], the sum over all ranks."""
        given, to = x.tensor[:rows], out.tensor[:rows]
        experts, weights = route(logits.tensor[:rows].float(), self._routing, self._bias)
        if self._scales is not None:
            weights = weights * self._scales.float()[experts]
        if given.is_cuda and given.dtype == torch.bfloat16:
            to.copy_(self._grouped(given, experts, weights))
        else:
            to.copy_(self._each(given, experts, weights))
        self._group.all_reduce(to)

    def _each(self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
        total = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        for index in range(len(self._down)):
            chosen = experts == index
            weight = (weights * chosen).sum(1, keepdim=True)  # [rows, 1]
            given = x
            if self._routing.weighs_inputs:
                given, weight = (x * weight).to(x.dtype), chosen.any(1, keepdim=True)
            inner = self._active(self._gate_up.one(index, given))
            total += weight * self._down.one(index, inner).float()
        return total

    def _grouped(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor
    ) -> torch.Tensor:
        rows, chosen = experts.shape
        order = experts.flatten().argsort(stable=True)
        of_rows = experts.flatten()[order]
        counts = torch.zeros(len(self._down), dtype=torch.int32, device=x.device)
        counts.scatter_add_(0, of_rows, torch.ones_like(order, dtype=torch.int32))
        ends = counts.cumsum(0, dtype=torch.int32)
        given = x[order // chosen]
        if self._routing.weighs_inputs:
            given = (given * weights.flatten()[order, None]).to(x.dtype)
            weights = torch.ones_like(weights)
        inner = self._active(self._gate_up.sorted(given, of_rows, ends))
        results = self._down.sorted(inner, of_rows, ends)
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

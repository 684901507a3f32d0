"""Experts by grouped products: rows are sorted by expert on the device, and a product takes the
borders between them from the device, too.

Rows that belong to experts of other ranks come last, where no product reaches, and what lies there
counts for nothing.
"""

from dataclasses import dataclass
from typing import Protocol

import torch

from pyengine.kernels.layers.activation import activated
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.parts import Activation
from pyengine.model.torch.device.ops import TorchOps


def has_grouped_mm(device: torch.device, dtype: torch.dtype) -> bool:
    """Whether torch has a grouped product of its own for a GPU, which waits for nothing.

    In other types, and on older GPUs, it computes group by group, and waits for the borders.
    """
    if device.type != "cuda" or dtype != torch.bfloat16:
        return False
    return torch.cuda.get_device_capability(device) >= (9, 0)


class ExpertLinear(Protocol):
    """A linear layer of each expert."""

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """Each row through its expert: [rows, in] -> [rows, out].

        Args:
            x: Rows, sorted by expert.
            experts: The expert of each row, [rows]; those behind the last one have no result.
            ends: Where the rows of each expert end, int32 [experts].
        """


@dataclass(frozen=True)
class GroupedLinear:
    """A linear layer of each expert, dense.

    Attributes:
        ops: The operations of the device.
        weight: [experts, out, in].
        bias: [experts, out], or None.
        by_torch: The product is torch's own; see :func:`has_grouped_mm`.
    """

    ops: TorchOps
    weight: torch.Tensor
    bias: torch.Tensor | None
    by_torch: bool

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """See :class:`ExpertLinear`."""
        if not self.by_torch:
            out = x.new_empty(len(x), self.weight.shape[1])
            self.ops.grouped(x, self.weight, self.bias, ends, out)
            return out
        out = torch.nn.functional.grouped_mm(x, self.weight.transpose(1, 2), offs=ends)
        if self.bias is None:
            return out
        return out + self.bias[experts.clamp(max=len(self.bias) - 1)]


@dataclass(frozen=True)
class GroupedLayers:
    """The linear layers of the experts that a rank has, or of its share of all.

    Attributes:
        count: Experts of all ranks.
        first: The number of the first one here.
        here: How many are here.
        gate_up: Gates, then ups: hidden numbers to twice those between; or ups alone.
        down: The layers from inner to hidden states.
        gated: Whether there are gates.
    """

    count: int
    first: int
    here: int
    gate_up: ExpertLinear
    down: ExpertLinear
    gated: bool = True


class GroupedExperts:
    """A product of all experts for gates and ups, the activation, and a product for the results.

    Queues several kernels on the current stream; can be captured.
    """

    def __init__(
        self,
        ops: TorchOps,
        device: torch.device,
        routing: Routing,
        activation: Activation,
        layers: GroupedLayers,
    ) -> None:
        """Compute the experts of ``layers``."""
        self._ops = ops
        self._activation = activation
        self._weighs_inputs = routing.weighs_inputs
        self._layers = layers
        self._divided = layers.here < layers.count
        self._numbers = torch.arange(layers.here, dtype=torch.int32, device=device)

    def __call__(
        self, x: torch.Tensor, experts: torch.Tensor, weights: torch.Tensor, out: torch.Tensor
    ) -> None:
        """See :class:`pyengine.model.torch.layers.experts.mixture.ExpertProducts`."""
        rows, chosen = experts.shape
        if self._divided:
            # Experts elsewhere get the number behind the last one.
            experts = experts - self._layers.first
            elsewhere = (experts < 0) | (experts >= len(self._numbers))
            experts.masked_fill_(elsewhere, len(self._numbers))
        of_rows, order = experts.flatten().sort(stable=True)
        ends = torch.searchsorted(of_rows, self._numbers, right=True, out_int32=True)
        given = x[order // chosen]
        if self._weighs_inputs:
            given = (given * weights.flatten()[order, None]).to(x.dtype)
            weights = torch.ones_like(weights)
        inner = self._active(self._layers.gate_up(given, of_rows, ends))
        results = self._layers.down(inner, of_rows, ends)
        by_row = torch.empty_like(results)
        by_row[order] = results
        by_choice = by_row.view(rows, chosen, -1).float()
        if self._divided:
            # What no product has written may be anything, and NaN times 0 is NaN.
            by_choice.masked_fill_(elsewhere[:, :, None], 0.0)
        out.copy_((by_choice * weights[:, :, None]).sum(1))

    def _active(self, gates: torch.Tensor) -> torch.Tensor:
        if not self._layers.gated:
            return activated(gates, self._activation.kind)
        inner = gates.new_empty(len(gates), gates.shape[1] // 2)
        self._ops.gated(gates, inner, self._activation.kind, self._activation.limit)
        return inner

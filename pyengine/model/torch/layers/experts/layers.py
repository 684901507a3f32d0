"""The linear layers of experts on a device: quantized weights stay as files have them where there
is a product for them, others become dense.

Floats of 8 bits multiply rows of 8 bits, if the checkpoint means them to. Of others weights alone
are quantized: rows keep their type, and the numbers that are multiplied are those of dense experts
of the same file. Gates may be stored otherwise than ups: a product each.
"""

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray

from pyengine.model.architectures.experts import ExpertWeights
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.experts.float8 import Float8ExpertLinear, are_float8
from pyengine.model.torch.layers.experts.grouped import (
    ExpertLinear,
    GroupedLayers,
    GroupedLinear,
    has_grouped_mm,
)
from pyengine.model.torch.layers.packed_weights import shares, stay_packed
from pyengine.model.weights.matrix import Matrix


class PackedExpertLinear:
    """A linear layer of each expert, quantized; see
    :class:`pyengine.model.torch.layers.experts.grouped.ExpertLinear`.
    """

    def __init__(
        self,
        ops: TorchOps,
        weights: Sequence[Matrix],
        biases: torch.Tensor | None,
        transfer: Transfer,
    ) -> None:
        """Copy the weights.

        Args:
            ops: The operations of the device.
            weights: The weights of each expert, [out, in], all alike.
            biases: [experts, out] on the device, or None.
            transfer: Brings weights there.
        """
        self._ops = ops
        self._outputs = weights[0].shape[0]
        self._shares = [
            (
                share.outputs,
                share.weight,
                None if biases is None else biases[:, share.outputs].contiguous(),
            )
            for share in shares(weights, transfer)
        ]

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """See :class:`ExpertLinear`."""
        out = x.new_empty(len(x), self._outputs)
        for outputs, weight, bias in self._shares:
            self._ops.grouped_packed(x, weight, bias, ends, out[:, outputs])
        return out


def load_layers(
    ops: TorchOps,
    weights: ExpertWeights,
    transfer: Transfer,
    device: torch.device,
    dtype: torch.dtype,
) -> GroupedLayers:
    """The layers of ``weights``; they are filled once ``transfer`` was waited for."""

    def layer(matrices: Sequence[Matrix], biases: Sequence[NDArray[Any]]) -> ExpertLinear:
        vectors = torch.stack([transfer.vector(each) for each in biases]) if biases else None
        if stay_packed(matrices, device, dtype):
            packed = Float8ExpertLinear if are_float8(matrices) else PackedExpertLinear
            return packed(ops, matrices, vectors, transfer)
        by_torch = has_grouped_mm(device, dtype)
        return GroupedLinear(ops, transfer.matrices(matrices), vectors, by_torch)

    return GroupedLayers(
        weights.count,
        weights.first,
        len(weights.down),
        layer(weights.gate_up, weights.gate_up_bias),
        layer(weights.down, weights.down_bias),
        weights.gated,
    )

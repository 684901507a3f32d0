"""The linear layers of experts whose weights are floats of 8 bits, on a GPU.

Rows become 8 bits too (``W8A8``), with a scale for each group of 128 inputs of a row, or of fewer
where a rank's share cuts the blocks of the weights, as in
:mod:`pyengine.model.torch.layers.block_linear`.
"""

from collections.abc import Sequence

import torch

from pyengine.kernels.layers.quantize import FLOAT8
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.block_linear import step_of
from pyengine.model.torch.layers.packed_weights import shares
from pyengine.model.weights.matrix import Float8, Matrix


def are_float8(weights: Sequence[Matrix]) -> bool:
    """Whether :class:`Float8ExpertLinear` is for layers that are all alike: all parts are floats
    with scales for steps of as many inputs.
    """
    parts = weights[0].parts
    steps = {step_of(Matrix((part,))) for part in parts}
    return all(isinstance(part, Float8) for part in parts) and len(steps) == 1


class Float8ExpertLinear:
    """A linear layer of each expert, of 8-bit floats; see
    :class:`pyengine.model.torch.layers.grouped_experts.ExpertLinear`.
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
            ops: Of the device.
            weights: Of each expert, [out, in], for which :func:`are_float8` is true.
            biases: [experts, out] on the device, or None.
            transfer: Brings weights there.
        """
        self._ops = ops
        self._biases = biases
        [share] = shares(weights, transfer)
        self._weight = share.weight

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """See :class:`ExpertLinear`."""
        (rows, inputs), weight, ops = x.shape, self._weight, self._ops
        small = torch.empty(rows, inputs, dtype=FLOAT8, device=x.device)
        # Kernels are compiled for distances that are multiples of 16.
        room = x.new_empty(weight.scales.shape[1], -(-rows // 16) * 16, dtype=torch.float32)
        scales = room[:, :rows]
        ops.quantize_groups(x, small, scales, weight.group)
        out = x.new_empty(rows, weight.shape[1])
        ops.grouped_block(small, scales, weight, self._biases, ends, out)
        return out

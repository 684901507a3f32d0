"""The linear layers of experts whose weights are floats of 8 bits, on a GPU.

Rows become 8 bits too (``W8A8``), with a scale for each group of 128 inputs of a row, or of fewer
where a rank's share cuts the blocks of the weights, as in
:mod:`pyengine.model.torch.layers.linear.block`.
"""

from collections.abc import Sequence

import torch

from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.linear.rounded_rows import rounded_by_step
from pyengine.model.torch.layers.packed_weights import shares
from pyengine.model.weights.float8 import activations_of, step_of
from pyengine.model.weights.matrix import Matrix


def are_float8(weights: Sequence[Matrix]) -> bool:
    """Whether :class:`Float8ExpertLinear` is for layers that are all alike: all parts are floats
    with scales for steps of as many inputs, and rows become such, too.
    """
    parts = weights[0].parts
    steps = {step_of(Matrix((part,))) for part in parts}
    return activations_of(weights[0]) is not None and len(steps) == 1


class Float8ExpertLinear:
    """A linear layer of each expert, of 8-bit floats; see
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
            weights: The weights of each expert, [out, in], for which :func:`are_float8` is true.
            biases: [experts, out] on the device, or None.
            transfer: Brings weights there.
        """
        activations = activations_of(weights[0])
        assert activations is not None
        self._activations = activations
        self._ops = ops
        self._biases = biases
        [share] = shares(weights, transfer)
        self._weight = share.weight

    def __call__(self, x: torch.Tensor, experts: torch.Tensor, ends: torch.Tensor) -> torch.Tensor:
        """See :class:`ExpertLinear`."""
        weight, ops = self._weight, self._ops
        small, scales = rounded_by_step(ops, x, weight.group, self._activations)
        out = x.new_empty(len(x), weight.shape[1])
        ops.grouped_block(small, scales, weight, self._biases, ends, out)
        return out

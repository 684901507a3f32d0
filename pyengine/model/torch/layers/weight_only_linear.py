"""Linear layers whose weights are integers of 4 or 8 bits, or MXFP4, on a GPU.

Weights alone are quantized (``W4A16``, ``W8A16``): rows keep their type, and the numbers that are
multiplied are those of a dense layer of the same file. What one layer mixes (queries in 4 bits,
values in 6) stays mixed: a product each.
"""

from collections.abc import Sequence
from typing import Any, Protocol

import torch
from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.model.architectures.parts import Buffer
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.packed_weights import Share, kinds
from pyengine.model.weights.matrix import Float8, Matrix

DTYPES = (torch.bfloat16, torch.float16)


class Device(Protocol):
    """What layers need of :class:`pyengine.model.torch.layers.parts.TorchParts`."""

    group: Group
    ops: TorchOps
    transfer: Transfer


def is_weight_only(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`WeightOnlyLinear` is for these weights, rows of ``dtype`` and this device."""
    return device.type == "cuda" and dtype in DTYPES and has_product(weight)


def has_product(weight: Matrix) -> bool:
    """Whether all parts are numbers in groups that there is a product for.

    Floats of 8 bits are for :mod:`pyengine.model.torch.layers.block_linear`.
    """
    floats = any(isinstance(part, Float8) for part in weight.parts)
    return not floats and kinds(weight) is not None


class WeightOnlyLinear:
    """x W^T + b."""

    def __init__(
        self, parts: Device, weight: Sequence[Share], bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """Of weights that are on the device, or on their way there.

        Args:
            parts: The parts of the device.
            weight: Of this rank, one layer: [out, in].
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        mine = None if reduce and parts.group.rank else bias
        self._shares = [
            (
                share.outputs,
                share.weight.layer(0),
                None if mine is None else parts.transfer.vector(mine[share.outputs]),
            )
            for share in weight
        ]
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        given, result = x.tensor[:rows], out.tensor[:rows]
        for outputs, weight, bias in self._shares:
            self._parts.ops.packed_product(given, weight, bias, result[:, outputs])
        if self._reduce:
            self._parts.group.all_reduce(result)

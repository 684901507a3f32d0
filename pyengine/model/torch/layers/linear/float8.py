"""Linear layers whose weights are floats of 8 bits with a scale for each output, on a GPU.

Activations become 8 bits too, with a scale for each row (``W8A8``), and torch's library multiplies
them as they are. Weights with scales for blocks of inputs are
:class:`pyengine.model.torch.layers.linear.block.BlockLinear`'s.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.torch.layers.linear.rounded_rows import rounded_by_row
from pyengine.model.torch.layers.linear.weight_only import Device
from pyengine.model.weights.float8 import Float8, activations_of
from pyengine.model.weights.matrix import Matrix

_MULTIPLE = 16
_CAPABILITY = (9, 0)


def is_float8(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`Float8Linear` is for these weights, rows of ``dtype`` and this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    outputs, inputs = weight.shape
    by_output = all(isinstance(part, Float8) and part.scales.shape[1] == 1 for part in weight.parts)
    fits = dtype == torch.bfloat16 and outputs % _MULTIPLE == inputs % _MULTIPLE == 0
    return by_output and fits and activations_of(weight) is not None


class Float8Linear:
    """x W^T + b."""

    def __init__(
        self, parts: Device, weight: Matrix, bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """Copy the weights.

        Args:
            parts: The parts of the device.
            weight: The weight of this rank, [out, in], for which :func:`is_float8` may be true.
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        activations, transfer = activations_of(weight), parts.transfer
        assert activations is not None
        self._activations = activations
        self._weight = transfer.stored(float8_values(weight))
        self._scales = transfer.vector(_scales(weight), torch.float32)[None]  # [1, out]
        mine = None if reduce and parts.group.rank else bias
        self._bias = None if mine is None else transfer.vector(mine)
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        result = out.tensor[:rows]
        small, scales = rounded_by_row(self._parts.ops, x.tensor[:rows], self._activations)
        torch._scaled_mm(
            small,
            self._weight.t(),
            scale_a=scales,
            scale_b=self._scales,
            out_dtype=result.dtype,
            out=result,
            # Sums stay in the tensor cores, whose 14 bits are far finer than the inputs' 4.
            use_fast_accum=True,
        )
        if self._bias is not None:
            result.add_(self._bias)
        if self._reduce:
            self._parts.group.all_reduce(result)


def float8_values(weight: Matrix) -> list[NDArray[Any]]:
    """The values of the parts of a matrix of 8-bit floats, without their scales."""
    return [part.values for part in weight.parts if isinstance(part, Float8)]


def _scales(weight: Matrix) -> NDArray[np.float32]:
    """The scale of each output, [out]."""
    of_parts = []
    for part in weight.parts:
        assert isinstance(part, Float8)
        blocks = (np.arange(part.shape[0]) + part.first[0]) // part.block[0]
        of_parts.append(part.scales[blocks, 0])
    return np.concatenate(of_parts)

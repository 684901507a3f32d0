"""Linear layers whose weights are floats of 8 bits with scales for blocks of inputs, on a GPU.

Activations become 8 bits too, with a scale for each group of inputs of a row, as those models are
meant to be computed (DeepSeek's blocks of 128 by 128). A block may begin in the middle of a rank's
share; groups are then as large as fits both.
"""

from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.model.architectures.parts import Buffer
from pyengine.model.torch.layers.float8_linear import Rows, float8_values
from pyengine.model.weights.matrix import Float8, Matrix

_CAPABILITY = (8, 9)
_LEAST, _MOST = 32, 128
_DTYPES = (torch.bfloat16, torch.float16)


def is_blocks(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`BlockLinear` is for these weights, rows of ``dtype`` and this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    return dtype in _DTYPES and step_of(weight) >= _LEAST


def step_of(weight: Matrix) -> int:
    """The most neighbouring inputs, a power of two, of which all outputs have one scale each; 0
    where a part is stored otherwise.
    """
    step, inputs = _MOST, weight.shape[1]
    for part in weight.parts:
        if not isinstance(part, Float8):
            return 0
        block, first = part.block[1], part.first[1]
        if first + inputs > block:
            step = gcd(step, block, first)
    return step


class BlockLinear:
    """x W^T + b."""

    def __init__(
        self, parts: Rows, weight: Matrix, bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """Copy the weights.

        Args:
            parts: The parts of the device.
            weight: Of this rank, [out, in].
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        self._step = step_of(weight)
        scales, transfer = _scales(weight, self._step), parts.transfer
        self._weight = transfer.stored(float8_values(weight))
        self._scales = transfer.stored([scales])
        mine = None if reduce and parts.group.rank else bias
        self._bias = None if mine is None else transfer.vector(mine)
        self._rows, self._row_scales = parts.float8_rows(weight.shape[1], len(scales))
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        result, quantized = out.tensor[:rows], self._rows[:rows]
        scales, ops = self._row_scales[:, :rows], self._parts.ops
        ops.quantize_groups(x.tensor[:rows], quantized, scales, self._step)
        ops.block_product(
            quantized, scales, self._weight, self._scales, self._bias, self._step, result
        )
        if self._reduce:
            self._parts.group.all_reduce(result)


def scales_of_steps(part: Float8, step: int) -> NDArray[np.float32]:
    """The scales of each step of inputs, [steps, out]."""
    below = (np.arange(part.shape[0]) + part.first[0]) // part.block[0]
    beside = (np.arange(0, part.shape[1], step) + part.first[1]) // part.block[1]
    return part.scales[:, beside].T[:, below]


def _scales(weight: Matrix, step: int) -> NDArray[np.float32]:
    """Those of all parts, [steps, out]."""
    parts = [part for part in weight.parts if isinstance(part, Float8)]
    return np.concatenate([scales_of_steps(part, step) for part in parts], axis=1)

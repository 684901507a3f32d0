"""Linear layers whose weights are floats of 8 bits with scales for blocks of inputs, on a GPU.

Activations become 8 bits too, with a scale for each group of inputs of a row, as those models are
meant to be computed (DeepSeek's blocks of 128 by 128). A block may begin in the middle of a rank's
share; groups are then as large as fits both.
"""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.torch.layers.linear.float8 import float8_values
from pyengine.model.torch.layers.linear.rounded_rows import rounded_by_step
from pyengine.model.torch.layers.linear.weight_only import Device
from pyengine.model.weights.float8 import Float8, activations_of, scales_of_steps, step_of
from pyengine.model.weights.matrix import Matrix

_CAPABILITY = (8, 9)
_LEAST = 32
_DTYPES = (torch.bfloat16, torch.float16)


def is_blocks(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`BlockLinear` is for these weights, rows of ``dtype`` and this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    rounded = activations_of(weight) is not None
    return rounded and dtype in _DTYPES and step_of(weight) >= _LEAST


class BlockLinear:
    """x W^T + b."""

    def __init__(
        self, parts: Device, weight: Matrix, bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """Copy the weights.

        Args:
            parts: The parts of the device.
            weight: The weight of this rank, [out, in], for which :func:`is_blocks` may be true.
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        activations = activations_of(weight)
        assert activations is not None
        self._activations = activations
        self._step = step_of(weight)
        scales, transfer = _scales(weight, self._step), parts.transfer
        self._weight = transfer.stored(float8_values(weight))
        self._scales = transfer.stored([scales])
        mine = None if reduce and parts.group.rank else bias
        self._bias = None if mine is None else transfer.vector(mine)
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        result, ops, step = out.tensor[:rows], self._parts.ops, self._step
        small, scales = rounded_by_step(ops, x.tensor[:rows], step, self._activations)
        ops.block_product(small, scales, self._weight, self._scales, self._bias, step, result)
        if self._reduce:
            self._parts.group.all_reduce(result)


def _scales(weight: Matrix, step: int) -> NDArray[np.float32]:
    """Scales of all parts, [steps, out]."""
    parts = [part for part in weight.parts if isinstance(part, Float8)]
    return np.concatenate([scales_of_steps(part, step) for part in parts], axis=1)

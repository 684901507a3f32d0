"""Linear layers whose weights are floats of 8 bits with a scale for each output, on a GPU.

Activations become 8 bits too, with a scale for each row (``W8A8``), and torch's library multiplies
them as they are. Weights with scales for blocks of inputs are
:class:`pyengine.model.torch.layers.block_linear.BlockLinear`'s.
"""

from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.model.architectures.parts import Buffer
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.weights.matrix import Float8, Matrix

_MULTIPLE = 16
_CAPABILITY = (9, 0)


class Rows(Protocol):
    """What layers need of :class:`pyengine.model.torch.layers.parts.TorchParts`."""

    group: Group
    ops: TorchOps
    transfer: Transfer

    def float8_rows(self, width: int, groups: int = 1) -> tuple[torch.Tensor, torch.Tensor]:
        """Room for the quantized rows of any layer of so many inputs, and for their scales."""


def is_float8(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`Float8Linear` is for these weights, rows of ``dtype`` and this device."""
    if device.type != "cuda" or torch.cuda.get_device_capability(device) < _CAPABILITY:
        return False
    outputs, inputs = weight.shape
    by_output = all(isinstance(part, Float8) and part.scales.shape[1] == 1 for part in weight.parts)
    return by_output and dtype == torch.bfloat16 and outputs % _MULTIPLE == inputs % _MULTIPLE == 0


class Float8Linear:
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
        transfer = parts.transfer
        self._weight = transfer.stored(float8_values(weight))
        self._scales = transfer.vector(_scales(weight), torch.float32)[None]  # [1, out]
        mine = None if reduce and parts.group.rank else bias
        self._bias = None if mine is None else transfer.vector(mine)
        self._rows, scales = parts.float8_rows(weight.shape[1])
        self._row_scales = scales.view(-1, 1)
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        result, quantized, scales = out.tensor[:rows], self._rows[:rows], self._row_scales[:rows]
        self._parts.ops.quantize_rows(x.tensor[:rows], quantized, scales)
        torch._scaled_mm(
            quantized,
            self._weight.t(),
            scale_a=scales,
            scale_b=self._scales,
            out_dtype=result.dtype,
            out=result,
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

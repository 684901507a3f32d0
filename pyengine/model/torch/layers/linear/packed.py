"""Linear layers with quantized weights on torch's CPU device: the Rust kernels of the CPU runner.

So several ranks compute what one does, and none of them holds dense weights.
"""

from typing import Any

import torch
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuTensor
from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.cpu.executor import run_once
from pyengine.model.cpu.linear import is_quantized, pack
from pyengine.model.dtypes import FLOATS
from pyengine.model.weights.matrix import Matrix

DTYPES = {torch.float32: FLOATS["float32"], torch.bfloat16: FLOATS["bfloat16"]}


def is_packed(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`PackedLinear` is for these weights, rows of ``dtype`` and this device."""
    quantized = any(map(is_quantized, weight.parts))
    return quantized and device.type == "cpu" and dtype in DTYPES


class PackedLinear:
    """x W^T + b."""

    def __init__(
        self,
        kernels: CpuKernels,
        group: Group,
        weight: Matrix,
        bias: NDArray[Any] | None,
        dtype: torch.dtype,
        *,
        reduce: bool,
    ) -> None:
        """Copy the weights.

        Args:
            kernels: The kernels and their threads.
            group: The ranks that share the model.
            weight: The weight of this rank, [out, in].
            bias: [out].
            dtype: The type of the rows that come in and go out.
            reduce: The results of all ranks are summed.
        """
        mine = None if reduce and group.rank else bias
        self._weight = pack(weight, mine, DTYPES[dtype])
        self._kernels = kernels
        self._group = group
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        with run_once(self._kernels, rows) as program:
            program.linear(self._weight, shared(x.tensor), shared(out.tensor))
        if self._reduce:
            self._group.all_reduce(out.tensor[:rows])


def shared(tensor: torch.Tensor) -> CpuTensor:
    """``tensor`` as the kernels see it, in the same memory."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return CpuTensor(bits.numpy())

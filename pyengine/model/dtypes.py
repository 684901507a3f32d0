"""Data types of weights and buffers, by their names in settings, as numpy has them.

numpy itself has no bfloat16 and no 8-bit floats: those are ml_dtypes'. Imports no torch.
"""

from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuTensor

FLOATS: dict[str, np.dtype[Any]] = {
    "float32": np.dtype(np.float32),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float16": np.dtype(np.float16),
}
"""What a model computes in."""

ITEM_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2, "float8_e4m3": 1}
"""Bytes of a number in a buffer or a KV cache."""


def bits(array: NDArray[Any]) -> NDArray[Any]:
    """``array``, or where its type is one that other libraries do not know, its bits as integers.

    Shares the memory.
    """
    if array.dtype == ml_dtypes.bfloat16:
        return array.view(np.int16)
    if array.dtype == ml_dtypes.float8_e4m3fn:
        return array.view(np.uint8)
    return array


def cpu_tensor(array: NDArray[Any]) -> CpuTensor:
    """``array`` (contiguous) as the CPU kernels see it; shares its memory."""
    return CpuTensor(bits(array))

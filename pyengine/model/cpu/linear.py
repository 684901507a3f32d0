"""Linear layers and tables on the CPU: weights packed for the Rust kernels, as they are stored.

Quantized weights stay so. A layer of them rounds what goes in to 8 bits and multiplies integers;
their sums are exact, so a row's results do not depend on what other rows there are.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuLinear, CpuTensor
from pyengine.errors import ModelLoadError
from pyengine.model.dtypes import FLOATS, cpu_tensor
from pyengine.model.weights.matrix import Dense, Matrix, Packed, Part
from pyengine.model.weights.microscaled import NO_NUMBER, Microscaled

BFLOAT16 = FLOATS["bfloat16"]


def pack(weight: Matrix, bias: NDArray[Any] | None, dtype: np.dtype[Any]) -> CpuLinear:
    """A copy of ``weight`` and ``bias`` [out].

    Floats become ``dtype``, those of 8 bits too, but for bfloat16, which float32 cannot better.
    """
    layers, start = [], 0
    for _, alike in groupby(weight.parts, _kind):
        parts = list(alike)
        stop = start + sum(part.shape[0] for part in parts)
        given = None if bias is None else cpu_tensor(np.array(bias[start:stop], dtype))
        layers.append(_layer(parts, given, dtype))
        start = stop
    return CpuLinear.stacked(layers)


def is_quantized(part: Part) -> bool:
    """Whether a layer of ``part`` multiplies integers."""
    return isinstance(part, Packed | Microscaled)


def _layer(parts: Sequence[Part], bias: CpuTensor | None, dtype: np.dtype[Any]) -> CpuLinear:
    """A layer of parts of one kind."""
    if packed := [part for part in parts if isinstance(part, Packed)]:
        return _packed(packed, bias)
    if microscaled := [part for part in parts if isinstance(part, Microscaled)]:
        return _microscaled(microscaled, bias)
    return _dense(parts, bias, dtype)


def _kind(part: Part) -> tuple[object, ...]:
    """Equal for parts that one array can hold; empty for floats."""
    if isinstance(part, Microscaled):
        return (Microscaled,)
    if not isinstance(part, Packed):
        return ()
    return part.bits, part.group, part.zeros is None, part.minimums is None


def _dense(parts: Sequence[Part], bias: CpuTensor | None, dtype: np.dtype[Any]) -> CpuLinear:
    if all(isinstance(part, Dense) and part.values.dtype == BFLOAT16 for part in parts):
        # Kernels widen them as they multiply: the same bits as in float32, half the bytes to read.
        dtype = BFLOAT16
    return CpuLinear.dense(cpu_tensor(Matrix(tuple(parts)).dequantized(dtype)), bias)


def _packed(parts: Sequence[Packed], bias: CpuTensor | None) -> CpuLinear:
    zeros = [part.zeros for part in parts if part.zeros is not None]
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return CpuLinear.packed(
        _joined([part.values for part in parts]),
        _joined([part.scales for part in parts]),
        _joined(zeros) if zeros else None,
        _joined(minimums) if minimums else None,
        parts[0].bits,
        parts[0].group,
        bias,
    )


def _microscaled(parts: Sequence[Microscaled], bias: CpuTensor | None) -> CpuLinear:
    exponents = _joined([part.exponents for part in parts])
    if any((part.exponents == NO_NUMBER).any() for part in parts):
        raise ModelLoadError(
            "a scale of weights in MXFP4 is not a number; the file is damaged, or is no model"
        )
    return CpuLinear.microscaled(_joined([part.values for part in parts]), exponents, bias)


def _joined(arrays: Sequence[NDArray[Any]]) -> CpuTensor:
    return CpuTensor(
        np.ascontiguousarray(arrays[0]) if len(arrays) == 1 else np.concatenate(arrays)
    )

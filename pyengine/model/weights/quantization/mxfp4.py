"""MXFP4 (Open Compute Project, "Microscaling Formats (MX) Specification", 2023), as gpt-oss has it.

::

    gate_up_proj_blocks   uint8 [experts, out, in / 32, 16]   two numbers a byte, the first one low
    gate_up_proj_scales   uint8 [experts, out, in / 32]       exponents, moved up by 127

A number has 4 bits (e2m1). Twice the number is a whole one, so that integers of 8 bits and half the
scale mean exactly the same.
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.matrix import Packed
from pyengine.model.weights.quantization.scheme import Reader
from pyengine.model.weights.tensors import Tensors

GROUP = 32

_DOUBLED = np.array([0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12], np.int8)


def doubled(codes: NDArray[np.uint8]) -> NDArray[np.int8]:
    """Twice the numbers that codes of e2m1, 0 to 15, stand for."""
    return _DOUBLED[codes]


def half_scales(exponents: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Half the scales whose exponents, moved up by 127, are given."""
    return np.ldexp(np.float32(1), exponents.astype(np.int32) - 128)


class Mxfp4:
    """The experts of gpt-oss; all else is dense in the files, whatever the config lists."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config', which says no more than its name."""

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Packed:
        # The blocks lie by outputs, though the dense weights that they came from do not.
        name, _, index = layer.removesuffix(".T").rpartition("[")
        groups = shape[1] // GROUP
        blocks = tensors.tensor(f"{name}_blocks[{index}", shape[0], groups, GROUP // 2)[rows]
        exponents = tensors.tensor(f"{name}_scales[{index}", shape[0], groups)[rows]
        numbers = doubled(np.stack((blocks & 15, blocks >> 4), axis=-1))
        values = numbers.reshape(len(blocks), -1).view(np.uint8)
        return Packed(values, half_scales(exponents), None, None, 8, GROUP).columns(columns)

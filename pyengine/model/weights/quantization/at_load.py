"""Weights quantized as they are loaded: ``--quantization int8`` or ``int4``.

Symmetric, rounded to nearest, a scale for each group of 32 inputs (or of 16, or for all, where a
layer's inputs cannot be divided so): the arithmetic of GGUF's Q8_0 and of MLC's q4f16. Tables and
the head, which decide what is said, keep 8 bits.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ConfigError
from pyengine.model.weights.matrix import Packed, Part
from pyengine.model.weights.quantization.words import packed_values
from pyengine.model.weights.sharding import Source

BITS = {"int8": 8, "int4": 4}
EXACT = ("embed_tokens", "lm_head")
"""Layers with 8 bits in any case."""

ROWS = 64
"""Rows that are quantized at once: what lies between stays in the cache."""


class QuantizedAtLoad:
    """A source whose matrices become packed: see :class:`Source`."""

    def __init__(self, source: Source, quantization: str) -> None:
        """Quantize what ``source`` has dense, to ``int8`` or ``int4``."""
        self._source = source
        self._bits = BITS[quantization]
        self.nbytes = source.nbytes

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        return self._source.vector(name, size)

    def scale(self, names: Sequence[str]) -> float | None:
        """See :class:`Source`."""
        return self._source.scale(names)

    def has(self, name: str) -> bool:
        """See :class:`Source`."""
        return self._source.has(name)

    def check_all_read(self, config: Mapping[str, Any], *, some: bool = False) -> None:
        """See :class:`Source`."""
        self._source.check_all_read(config, some=some)

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """See :class:`Source`."""
        bits = 8 if any(layer in name for layer in EXACT) else self._bits
        # Groups are those of the whole, for any number of ranks.
        group = next((size for size in (32, 16) if shape[1] % size == 0), shape[1])
        if (columns.stop - columns.start) % group and columns != slice(0, shape[1]):
            raise ConfigError(
                f"{name!r} is quantized in groups of {group} inputs, which 'tensor_parallel' would "
                "divide; take fewer ranks",
                param="tensor_parallel",
            )
        part = self._source.matrix(name, shape, rows, columns)
        return quantized(part.dequantized(), bits if group % 2 == 0 else 8, group)


def quantized(weight: NDArray[Any], bits: int, group: int) -> Packed:
    """``weight`` [out, in] rounded to integers of ``bits`` bits: symmetric, to nearest.

    The largest of a group becomes 127; with 4 bits -8, which has no opposite: the sign of the
    scale is that of the number that it is made for.
    """
    outputs, inputs = weight.shape
    scales = np.empty((outputs, inputs // group), np.float32)
    values = np.empty((outputs, inputs * bits // 8), np.uint8)
    for start in range(0, outputs, ROWS):
        rows = slice(start, start + ROWS)
        numbers = weight[rows].astype(np.float32).reshape(-1, inputs // group, group)
        if bits == 8:
            scale = np.abs(numbers).max(-1) / np.float32(127)
        else:
            low, high = numbers.min(-1), numbers.max(-1)
            scale = np.where(-low > high, low, high) / np.float32(-8)
        # A group of zeros has a scale of zero: whatever it is divided by, it stays.
        numbers /= np.where(scale == 0, np.float32(1), scale)[..., None]
        np.rint(numbers, out=numbers)
        if bits == 8:
            integers = numbers.astype(np.int8).view(np.uint8)
        else:
            integers = (np.clip(numbers, -8, 7) + 8).astype(np.uint8)
        scales[rows] = scale
        values[rows] = packed_values(integers.reshape(-1, inputs), bits)
    return Packed(values, scales, None, None, bits, group)

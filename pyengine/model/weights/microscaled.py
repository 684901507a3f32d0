"""MXFP4 (Open Compute Project, "Microscaling Formats (MX) Specification", 2023) as a part.

A number has 4 bits (e2m1), and 32 of them share a power of two (e8m0).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.matrix import uncut

GROUP = 32
"""Neighbouring inputs that share a power."""

NO_NUMBER = 255
"""The exponent that means none."""

_NUMBERS = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)

_POWERS = np.append(np.ldexp(np.float32(1), np.arange(NO_NUMBER) - 127), np.float32(np.nan))


@dataclass(frozen=True, eq=False)
class Microscaled:
    """Floats of 4 bits: see :class:`pyengine.model.weights.matrix.Part`.

    Attributes:
        values: uint8 [out, in / 2], codes of e2m1, an even input in the low half of a byte.
        exponents: uint8 [out, in / 32], moved up by 127; :data:`NO_NUMBER` makes its group NaN.
    """

    values: NDArray[np.uint8]
    exponents: NDArray[np.uint8]

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`Part`."""
        outputs, width = self.values.shape
        return outputs, width * 2

    @property
    def nbytes(self) -> int:
        """See :class:`Part`."""
        return self.values.nbytes + self.exponents.nbytes

    def rows(self, rows: slice) -> "Microscaled":
        """See :class:`Part`."""
        return Microscaled(self.values[rows], self.exponents[rows])

    def reordered(self, order: NDArray[np.intp]) -> "Microscaled":
        """See :class:`Part`."""
        return Microscaled(self.values[order], self.exponents[order])

    def columns(self, columns: slice) -> "Microscaled":
        """See :class:`Part`."""
        if columns.start % GROUP or columns.stop % GROUP:
            raise uncut(GROUP)
        values = self.values[:, columns.start // 2 : columns.stop // 2]
        groups = slice(columns.start // GROUP, columns.stop // GROUP)
        return Microscaled(values, self.exponents[:, groups])

    def dequantized(self) -> NDArray[np.float32]:
        """See :class:`Part`."""
        outputs, inputs = self.shape
        numbers = np.empty((outputs, inputs // GROUP, GROUP), np.float32)
        pairs = self.values.reshape(outputs, inputs // GROUP, GROUP // 2)
        numbers[..., 0::2] = _NUMBERS[pairs & 15]
        numbers[..., 1::2] = _NUMBERS[pairs >> 4]
        numbers *= _POWERS[self.exponents][..., None]
        return numbers.reshape(outputs, inputs)

"""Weights that are made up: for measuring a model's speed without its files.

Every tensor begins at a place of its own in the same noise, so that a model is the same at every
start, on every device, and divided among any number of ranks. Norms are 1, biases 0, all else is
normal with the deviation that the model is initialised with: nothing overflows, and its answers
are meaningless.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any
from zlib import crc32

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.stacked import place

PERIOD = 1_048_573
"""Numbers after which the noise begins again: a prime, so that rows of a matrix differ. To draw a
number takes ten times as long as to copy it."""


@cache
def noise(deviation: float) -> NDArray[Any]:
    """Two periods of noise, in bfloat16: the type of most models."""
    numbers = np.random.default_rng(0).standard_normal(PERIOD, np.float32) * deviation
    return np.tile(numbers.astype(ml_dtypes.bfloat16), 2)


@dataclass(frozen=True)
class Noise:
    """Made-up rows of a matrix, which take memory once they are asked for: see :class:`Part`.

    Attributes:
        deviation: Their standard deviation.
        start: Where in the noise the first number is.
        width: Numbers from one row to the next.
        shape: Rows and columns.
    """

    deviation: float
    start: int
    width: int
    shape: tuple[int, int]
    nbytes = 0

    def rows(self, rows: slice) -> "Noise":
        """See :class:`Part`."""
        shape = rows.stop - rows.start, self.shape[1]
        return replace(self, start=self.start + rows.start * self.width, shape=shape)

    def columns(self, columns: slice) -> "Noise":
        """See :class:`Part`."""
        shape = self.shape[0], columns.stop - columns.start
        return replace(self, start=self.start + columns.start, shape=shape)

    def reordered(self, order: NDArray[np.intp]) -> "Noise":
        """See :class:`Part`: noise is as good in its own order."""
        return self

    def dequantized(self) -> NDArray[Any]:
        """See :class:`Part`: bfloat16."""
        source = noise(self.deviation)
        out = np.empty(self.shape, source.dtype)
        # Whole rows follow each other in the noise, and are one line; parts of rows are many.
        whole = self.shape[1] == self.width
        for row, line in enumerate(out.reshape(1, -1) if whole else out):
            first = (self.start + row * self.width) % PERIOD
            for begin in range(0, line.size, PERIOD):
                piece = line[begin : begin + PERIOD]
                piece[:] = source[first : first + piece.size]
        return out


class DummyWeights:
    """Weights of any shape by any name; see :class:`pyengine.model.weights.sharding.Source`."""

    nbytes = 0

    def __init__(self, deviation: float = 0.02) -> None:
        """Weights of this standard deviation."""
        self._deviation = deviation

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        return np.full(size, 0.0 if place(name).tensor.endswith("bias") else 1.0, np.float32)

    def check_all_read(self, config: Mapping[str, Any], *, some: bool = False) -> None:
        """See :class:`Source`; there is whatever is asked for, and nothing else."""

    def scale(self, names: Sequence[str]) -> float | None:
        """None."""
        return None

    def has(self, name: str) -> bool:
        """None is there before it is asked for."""
        return False

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Noise:
        """See :class:`Source`."""
        whole = Noise(self._deviation, crc32(name.encode()), shape[1], shape)
        return whole.rows(rows).columns(columns)

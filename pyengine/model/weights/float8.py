"""Floats of 8 bits as a part of a matrix, with scales by block, by output or for all."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.matrix import Matrix

STEP = 128
"""The most neighbouring inputs that products give one scale."""


@dataclass(frozen=True)
class Float8Activations:
    """Quantization of activations to 8-bit floats before they meet weights of that type.

    Attributes:
        bound: The largest number that a scale is made for; those beyond it become it.
    """

    bound: float = math.inf


@dataclass(frozen=True, eq=False)
class Float8:
    """Floats of 8 bits, and scales by block: weight = value * scale, in float32.

    Attributes:
        values: float8_e4m3fn [out, in].
        scales: float32 [blocks of outputs, blocks of inputs].
        block: Outputs and inputs of a block; blocks at the ends may be cut short.
        first: The first output's and input's place within the first block.
        activations: How rows become 8 bits, too, as the checkpoint is meant (W8A8); a device that
            has no product of such may leave it. None: rows keep their type (W8A16).
    """

    values: NDArray[Any]
    scales: NDArray[np.float32]
    block: tuple[int, int]
    first: tuple[int, int] = (0, 0)
    activations: Float8Activations | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`pyengine.model.weights.matrix.Part`."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def nbytes(self) -> int:
        """See :class:`Part`."""
        return self.values.nbytes + self.scales.nbytes

    def rows(self, rows: slice) -> "Float8":
        """See :class:`Part`."""
        blocks, first = self._blocks(rows, 0)
        values, scales = self.values[rows], self.scales[blocks]
        return replace(self, values=values, scales=scales, first=(first, self.first[1]))

    def columns(self, columns: slice) -> "Float8":
        """See :class:`Part`; any cut will do."""
        blocks, first = self._blocks(columns, 1)
        values, scales = self.values[:, columns], self.scales[:, blocks]
        return replace(self, values=values, scales=scales, first=(self.first[0], first))

    def dequantized(self) -> NDArray[np.float32]:
        """See :class:`Part`."""
        weights: NDArray[np.float32] = self.values.astype(np.float32)
        below, beside = (
            (np.arange(size) + first) // block
            for size, first, block in zip(self.shape, self.first, self.block, strict=True)
        )
        weights *= self.scales[below][:, beside]
        return weights

    def reordered(self, order: NDArray[np.intp]) -> "Float8":
        """See :class:`Part`; every row gets scales of its own."""
        scales = self.scales[(order + self.first[0]) // self.block[0]]
        block, first = (1, self.block[1]), (0, self.first[1])
        return replace(self, values=self.values[order], scales=scales, block=block, first=first)

    def _blocks(self, cut: slice, axis: int) -> tuple[slice, int]:
        """The blocks that ``cut`` touches, and its place within the first."""
        start, stop = self.first[axis] + cut.start, self.first[axis] + cut.stop
        size = self.block[axis]
        return slice(start // size, -(-stop // size)), start % size


def activations_of(weight: Matrix) -> Float8Activations | None:
    """How rows become 8 bits before they meet all of ``weight``, by the largest bound of its parts.

    None: a part is stored otherwise, or rows are to keep their type.
    """
    found = []
    for part in weight.parts:
        if not isinstance(part, Float8) or part.activations is None:
            return None
        found.append(part.activations)
    return max(found, key=lambda activations: activations.bound)


def step_of(weight: Matrix) -> int:
    """The most neighbouring inputs, a power of two, of which all outputs have one scale each; 0
    where a part is stored otherwise.
    """
    step, inputs = STEP, weight.shape[1]
    for part in weight.parts:
        if not isinstance(part, Float8):
            return 0
        block, first = part.block[1], part.first[1]
        if first + inputs > block:
            step = math.gcd(step, block, first)
    return step


def scales_of_steps(part: Float8, step: int) -> NDArray[np.float32]:
    """The scales of each step of inputs, [steps, out]."""
    below = (np.arange(part.shape[0]) + part.first[0]) // part.block[0]
    beside = (np.arange(0, part.shape[1], step) + part.first[1]) // part.block[1]
    return part.scales[:, beside].T[:, below]

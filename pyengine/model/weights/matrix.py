"""Weights of a linear layer or a table: dense or quantized, the same for all files and devices.

::

    Matrix [out, in]          a rank's rows of one or several tensors, one below the other
    ├─ Dense   q_proj         numbers
    ├─ Packed  k_proj         integers of 4 or 8 bits, a scale for each group of inputs
    └─ Float8  v_proj         floats of 8 bits, a scale for each block

:class:`pyengine.model.weights.float8.Float8` has a file of its own, and so have floats of 4 bits,
:class:`pyengine.model.weights.microscaled.Microscaled`.

The parts of a matrix may differ in kind: a file may quantize values otherwise than keys.
Architectures pass a matrix from :class:`pyengine.model.weights.sharding.Weights` to a device's
parts, and never look inside. Arrays may be views of a mapped file: a device copies what it keeps.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ConfigError
from pyengine.model.weights.origin import Origin


class Part(Protocol):
    """Rows of a matrix that are stored in one way."""

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs, whatever the storage."""

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""

    def rows(self, rows: slice) -> "Part":
        """Some of the outputs; shares the memory."""

    def columns(self, columns: slice) -> "Part":
        """Some of the inputs; shares the memory where it can.

        Raises:
            ConfigError: The cut is not at a border of groups.
        """

    def reordered(self, order: NDArray[np.intp]) -> "Part":
        """Its outputs in another order: ``order`` has, for each row, which one it was."""

    def dequantized(self) -> NDArray[Any]:
        """The numbers that are meant [out, in]: float32, or of a dense part its own type."""


@dataclass(frozen=True, eq=False)
class Dense:
    """Weights as they are.

    Attributes:
        values: float64, float32, float16 or bfloat16 [out, in].
    """

    values: NDArray[Any]

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`Part`."""
        outputs, inputs = self.values.shape
        return outputs, inputs

    @property
    def nbytes(self) -> int:
        """See :class:`Part`."""
        return self.values.nbytes

    def rows(self, rows: slice) -> "Dense":
        """See :class:`Part`."""
        return Dense(self.values[rows])

    def columns(self, columns: slice) -> "Dense":
        """See :class:`Part`."""
        return Dense(self.values[:, columns])

    def reordered(self, order: NDArray[np.intp]) -> "Dense":
        """See :class:`Part`."""
        return Dense(self.values[order])

    def dequantized(self) -> NDArray[Any]:
        """See :class:`Part`."""
        return self.values


@dataclass(frozen=True, eq=False)
class Packed:
    """Integers of 4 or 8 bits, and scales by group of neighbouring inputs of an output.

    ::

        zeros     weight = (value - zero) * scale
        minimums  weight = value * scale - minimum
        neither   weight = value * scale           symmetric: 8 bits, the value is signed
                  weight = (value - 8) * scale                4 bits

    computed in float32, rounded after each operation.

    Attributes:
        values: uint8. 8 bits: [out, in], two's complement where there are neither zeros nor
            minimums. 4 bits: [out, in / 2], an even input in the low half of a byte.
        scales: float32 [out, groups].
        zeros: uint8 [out, groups], or None.
        minimums: float32 [out, groups], or None.
        bits: 4 or 8.
        group: Inputs of a group, which divides their number: 16, 32, 64, 128, or all of them.
    """

    values: NDArray[np.uint8]
    scales: NDArray[np.float32]
    zeros: NDArray[np.uint8] | None
    minimums: NDArray[np.float32] | None
    bits: int
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """See :class:`Part`."""
        outputs, width = self.values.shape
        return outputs, width * 8 // self.bits

    @property
    def nbytes(self) -> int:
        """See :class:`Part`."""
        arrays = (self.values, self.scales, self.zeros, self.minimums)
        return sum(array.nbytes for array in arrays if array is not None)

    def rows(self, rows: slice) -> "Packed":
        """See :class:`Part`."""
        return self._of(rows)

    def reordered(self, order: NDArray[np.intp]) -> "Packed":
        """See :class:`Part`."""
        return self._of(order)

    def _of(self, rows: slice | NDArray[np.intp]) -> "Packed":
        return Packed(
            self.values[rows],
            self.scales[rows],
            None if self.zeros is None else self.zeros[rows],
            None if self.minimums is None else self.minimums[rows],
            self.bits,
            self.group,
        )

    def columns(self, columns: slice) -> "Packed":
        """See :class:`Part`."""
        inputs = self.shape[1]
        if columns == slice(0, inputs):
            return self
        count, a_byte = columns.stop - columns.start, 8 // self.bits
        if columns.start % a_byte or count % a_byte:
            raise uncut(self.group)
        values = self.values[:, columns.start // a_byte : columns.stop // a_byte]
        if self.group == inputs:
            # Every input of a row has the same scale.
            return Packed(values, self.scales, self.zeros, self.minimums, self.bits, count)
        if columns.start % self.group or count % self.group:
            raise uncut(self.group)
        groups = slice(columns.start // self.group, columns.stop // self.group)
        return Packed(
            values,
            self.scales[:, groups],
            None if self.zeros is None else self.zeros[:, groups],
            None if self.minimums is None else self.minimums[:, groups],
            self.bits,
            self.group,
        )

    def integers(self) -> NDArray[np.int16]:
        """The values [out, in], signed where they are symmetric; zeros are not subtracted."""
        symmetric = self.zeros is None and self.minimums is None
        if self.bits == 8:
            return (self.values.view(np.int8) if symmetric else self.values).astype(np.int16)
        numbers = np.empty(self.shape, np.int16)
        numbers[:, 0::2] = self.values & 15
        numbers[:, 1::2] = self.values >> 4
        return numbers - np.int16(8) if symmetric else numbers

    def dequantized(self) -> NDArray[np.float32]:
        """See :class:`Part`."""
        outputs, inputs = self.shape
        numbers = self.integers().reshape(outputs, inputs // self.group, self.group)
        if self.zeros is not None:
            numbers = numbers - self.zeros[..., None].astype(np.int16)
        weights = numbers.astype(np.float32)
        weights *= self.scales[..., None]
        if self.minimums is not None:
            weights -= self.minimums[..., None]
        return weights.reshape(outputs, inputs)


@dataclass(frozen=True, eq=False)
class Matrix:
    """Weights [out, in] of one rank; equal only to itself.

    Attributes:
        parts: Its rows, from the first output to the last. They have the same number of inputs.
        origins: Where the rows of each part come from; empty where that is not known.
    """

    parts: tuple[Part, ...]
    origins: tuple[Origin, ...] = ()

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return sum(part.shape[0] for part in self.parts), self.parts[0].shape[1]

    def reordered(self, order: NDArray[np.intp]) -> "Matrix":
        """Its outputs in another order; no row leaves its part.

        ``order`` is [out]: for each row, which one it was.
        """
        parts, origins, start = [], [], 0
        for at, part in enumerate(self.parts):
            stop = start + part.shape[0]
            own = order[start:stop] - start
            parts.append(part.reordered(own))
            origins += [origin.of(own) for origin in self.origins[at : at + 1]]
            start = stop
        return Matrix(tuple(parts), tuple(origins))

    def split(self, rows: Sequence[int]) -> list["Matrix"]:
        """The matrices that it consists of, with these numbers of outputs, from the first on."""
        matrices, rest, origins = [], list(self.parts), list(self.origins)
        for count in rows:
            taken: list[Part] = []
            known: list[Origin] = []
            while count:
                part = rest.pop(0)
                size = part.shape[0]
                if size > count:
                    rest.insert(0, part.rows(slice(count, size)))
                    part, size = part.rows(slice(0, count)), count
                if origins:
                    origin = origins.pop(0)
                    if len(origin.rows) > size:
                        origins.insert(0, origin.of(slice(size, None)))
                    known.append(origin.of(slice(0, size)))
                taken.append(part)
                count -= size
            matrices.append(Matrix(tuple(taken), tuple(known)))
        return matrices

    def above(self, other: "Matrix") -> "Matrix":
        """Returns the matrix with the outputs of ``other`` behind its own."""
        known = bool(self.origins and other.origins)
        return Matrix((*self.parts, *other.parts), (*self.origins, *other.origins) if known else ())

    def repeating_last(self, rows: int) -> "Matrix":
        """Returns the matrix with its last ``rows`` outputs repeated; they are one part's."""
        last = self.parts[-1]
        count = last.shape[0]
        again = [origin.of(slice(count - rows, count)) for origin in self.origins[-1:]]
        return Matrix((*self.parts, last.rows(slice(count - rows, count))), (*self.origins, *again))

    def transposed(self) -> "Matrix":
        """Returns the matrix with outputs and inputs exchanged, [in, out]: dense, of float32 or the
        type that all its parts have.
        """
        parts = [part.dequantized() for part in self.parts]
        return Matrix((Dense(np.ascontiguousarray(np.concatenate(parts).T)),))

    def dequantized(self, dtype: np.dtype[Any]) -> NDArray[Any]:
        """The numbers that are meant, rounded to ``dtype``: [out, in], contiguous.

        May share the memory of a file where nothing was to be computed.
        """
        if len(self.parts) == 1:
            return np.ascontiguousarray(self.parts[0].dequantized().astype(dtype, copy=False))
        out, start = np.empty(self.shape, dtype), 0
        for part in self.parts:
            stop = start + part.shape[0]
            out[start:stop] = part.dequantized()
            start = stop
        return out


def uncut(group: int) -> ConfigError:
    """The error of a cut within a group of ``group`` inputs."""
    return ConfigError(
        f"the weights are quantized in groups of {group} inputs, which 'tensor_parallel' would "
        "divide; take fewer ranks",
        param="tensor_parallel",
    )

"""A model's weights, as one rank takes them: of each tensor only its share.

::

    outputs   ranks divide rows       inputs   ranks divide columns
    ┌───────────┐ rank 0              ┌─────┬─────┐
    ├───────────┤                     │  0  │  1  │
    └───────────┘ rank 1              └─────┴─────┘

Weights are numpy arrays, mostly views of mapped files; the parts of a device copy and convert them.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import accumulate
from types import TracebackType
from typing import Any, Protocol, Self

import numpy as np
from numpy.typing import NDArray

from pyengine.model.progress import Progress
from pyengine.model.weights.matrix import Matrix, Part
from pyengine.model.weights.origin import Origin


def share(size: int, ranks: int) -> int:
    """The rows of each rank, if ``size`` rows are divided among ``ranks``, rounded up."""
    return -(-size // ranks)


def rows_of_rank(size: int, rank: int, ranks: int) -> slice:
    """A rank's share of ``size`` rows: as many as any other's.

    Where ranks do not divide them, as a vocabulary, the last ones' begin earlier, with rows that
    ranks before them have, too: so all are rows of the file, and stored as these are.
    """
    each = share(size, ranks)
    first = min(rank * each, size - each)
    return slice(first, first + each)


class Weights(Protocol):
    """The interface by which architectures load the weights of one rank.

    Names are those of the model's dense checkpoint, however the weights are stored. Every method
    raises ModelLoadError where a tensor is missing, has another shape or cannot be read.

    Attributes:
        num_parameters: Numbers of the whole model, as far as it was asked for.
    """

    num_parameters: int

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """The vector called ``name``; the same for all ranks. Floats, of the file's type."""

    def vectors(self, sizes: Mapping[str, int]) -> NDArray[Any]:
        """A share of each of the vectors, one behind the other; see :func:`rows_of_rank`."""

    def outputs(self, rows: Mapping[str, int], inputs: int) -> Matrix:
        """A share of the rows of each of the matrices [rows[name], inputs], one below the other;
        see :func:`rows_of_rank`.
        """

    def fused(self, name: str, rows: Sequence[int], inputs: int) -> Matrix:
        """As :meth:`outputs`, of a matrix [sum(rows), inputs] of several with ``rows`` each."""

    def fused_vector(self, name: str, sizes: Sequence[int]) -> NDArray[Any]:
        """As :meth:`vectors`, of a vector [sum(sizes)] of several."""

    def inputs(self, name: str, outputs: int, inputs: int) -> Matrix:
        """A share of the columns of the matrix called ``name``.

        Raises:
            ConfigError: It is quantized in groups that the ranks would divide.
        """

    def table(self, name: str, rows: int, width: int) -> Matrix:
        """The matrix called ``name``; the same for all ranks."""

    def scale(self, names: Sequence[str]) -> float | None:
        """The number in the first of these tensors that exists; None: none does.

        Raises:
            ModelLoadError: It has several numbers, such as one for each head.
        """

    def has(self, name: str) -> bool:
        """Whether there is a tensor of this name, as it is in files: made-up weights have none."""

    def check_all_read(self, config: Mapping[str, Any]) -> None:
        """Check, when a model has all it asks for, that its files have nothing more.

        Raises:
            ModelLoadError: They have, and it is nothing that may be left.
        """

    def whole_ones(self, count: int) -> AbstractContextManager[range]:
        """The numbers of this rank's, where ranks divide ``count`` things such as experts.

        What is read meanwhile is not divided further, and other ranks read as much of theirs.
        """


class Source(Protocol):
    """Source of the tensors of a whole model: files, or nothing. One thread at a time.

    Attributes:
        nbytes: Bytes of its files; 0 where there are none.
    """

    nbytes: int

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """The vector called ``name``, of floats.

        Raises:
            ModelLoadError: As for :class:`Weights`.
        """

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """Rows and columns of the matrix called ``name``, which is [*shape] as a whole.

        Both slices have a start and a stop within the shape; no rows at all are possible.

        Raises:
            ModelLoadError: As for :class:`Weights`.
            ConfigError: A cut that its quantization does not allow.
        """

    def scale(self, names: Sequence[str]) -> float | None:
        """See :class:`Weights`."""

    def has(self, name: str) -> bool:
        """See :class:`Weights`."""

    def check_all_read(self, config: Mapping[str, Any], *, some: bool = False) -> None:
        """See :class:`Weights`; ``some``: of things with numbers, only some were asked for."""


class RankWeights:
    """The share that one rank has of a source; see :class:`Weights`.

    As a context manager it tells ``progress`` of the end, if all went well.
    """

    def __init__(
        self, source: Source, rank: int = 0, ranks: int = 1, progress: Progress | None = None
    ) -> None:
        """The share of ``rank`` among ``ranks``.

        Args:
            source: The whole model.
            rank: The rank that has this share.
            ranks: Among how many.
            progress: Called with (bytes asked for, bytes in all), on the caller's thread.
        """
        self.source = source
        self.rank = rank
        self.ranks = ranks
        self.num_parameters = 0
        self._progress = progress
        self._loaded = 0
        self._some = False

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None and self._progress is not None and self.source.nbytes:
            self._progress(self.source.nbytes, self.source.nbytes)

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Weights`."""
        self.num_parameters += size
        found = self.source.vector(name, size)
        self._count(found.nbytes)
        return found

    def vectors(self, sizes: Mapping[str, int]) -> NDArray[Any]:
        """See :class:`Weights`."""
        return np.concatenate(
            [self.vector(name, size)[self._rows(size)] for name, size in sizes.items()]
        )

    def outputs(self, rows: Mapping[str, int], inputs: int) -> Matrix:
        """See :class:`Weights`."""
        read = []
        for name, count in rows.items():
            self.num_parameters += count * inputs
            read.append(self._read(name, (count, inputs), self._rows(count), slice(0, inputs)))
        return _matrix(read)

    def fused(self, name: str, rows: Sequence[int], inputs: int) -> Matrix:
        """See :class:`Weights`."""
        shape = sum(rows), inputs
        self.num_parameters += math.prod(shape)
        read = []
        for first, count in zip(accumulate(rows, initial=0), rows, strict=False):
            read.append(self._read(name, shape, self._rows(count, first), slice(0, inputs)))
        return _matrix(read)

    def fused_vector(self, name: str, sizes: Sequence[int]) -> NDArray[Any]:
        """See :class:`Weights`."""
        whole = self.vector(name, sum(sizes))
        firsts = zip(accumulate(sizes, initial=0), sizes, strict=False)
        return np.concatenate([whole[self._rows(size, first)] for first, size in firsts])

    def inputs(self, name: str, outputs: int, inputs: int) -> Matrix:
        """See :class:`Weights`."""
        self.num_parameters += outputs * inputs
        return _matrix([self._read(name, (outputs, inputs), slice(0, outputs), self._part(inputs))])

    def table(self, name: str, rows: int, width: int) -> Matrix:
        """See :class:`Weights`."""
        self.num_parameters += rows * width
        return _matrix([self._read(name, (rows, width), slice(0, rows), slice(0, width))])

    def scale(self, names: Sequence[str]) -> float | None:
        """See :class:`Weights`."""
        return self.source.scale(names)

    def has(self, name: str) -> bool:
        """See :class:`Weights`."""
        return self.source.has(name)

    def check_all_read(self, config: Mapping[str, Any]) -> None:
        """See :class:`Weights`."""
        self.source.check_all_read(config, some=self._some)

    @contextmanager
    def whole_ones(self, count: int) -> Iterator[range]:
        """See :class:`Weights`."""
        mine, divided = self._part(count), (self.rank, self.ranks)
        before = self.num_parameters
        self._some |= self.ranks > 1
        self.rank, self.ranks = 0, 1
        try:
            yield range(mine.start, mine.stop)
        finally:
            self.rank, self.ranks = divided
            self.num_parameters = before + (self.num_parameters - before) * self.ranks

    def _rows(self, size: int, first: int = 0) -> slice:
        """Range of this rank's share of ``size`` rows from ``first`` on."""
        mine = rows_of_rank(size, self.rank, self.ranks)
        return slice(first + mine.start, first + mine.stop)

    def _read(
        self, name: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> tuple[Part, Origin]:
        part = self.source.matrix(name, shape, rows, columns)
        self._count(part.nbytes)
        return part, Origin(name, shape, np.arange(rows.start, rows.stop), columns)

    def _count(self, size: int) -> None:
        self._loaded = min(self._loaded + size, self.source.nbytes)
        if self._progress is not None and size:
            self._progress(self._loaded, self.source.nbytes)

    def _part(self, size: int) -> slice:
        """Range of this rank's items, of ``size`` that are shared out."""
        each = share(size, self.ranks)
        return slice(min(size, self.rank * each), min(size, (self.rank + 1) * each))


def _matrix(read: Sequence[tuple[Part, Origin]]) -> Matrix:
    """Returns the matrix of parts that were read, with their origins."""
    return Matrix(tuple(part for part, _ in read), tuple(origin for _, origin in read))

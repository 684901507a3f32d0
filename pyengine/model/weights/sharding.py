"""A model's weights, as one rank takes them: straight to its device, and of each only its share.

::

    outputs   ranks divide rows       inputs   ranks divide columns
    ┌───────────┐ rank 0              ┌─────┬─────┐
    ├───────────┤                     │  0  │  1  │
    └───────────┘ rank 1              └─────┴─────┘
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Protocol

import torch

Slices = tuple[slice, ...]


def share(size: int, ranks: int) -> int:
    """Each rank's part of ``size`` rows; the last one's may be cut short, or empty."""
    return -(-size // ranks)


class Weights(Protocol):
    """The interface by which architectures load the weights of one rank.

    Attributes:
        num_parameters: Numbers of the whole model, as far as it was asked for.
    """

    num_parameters: int

    def whole(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor called ``name``, of this shape; the same for all ranks.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """

    def outputs(self, rows: Mapping[str, int], *rest: int) -> torch.Tensor:
        """A share of the rows of each of the tensors [rows[name], *rest], one below the other.

        Rows that ranks do not divide are filled up with zeros at the last one.

        Raises:
            ModelLoadError: One is missing, or has another shape.
        """

    def fused(self, name: str, rows: Sequence[int], *rest: int) -> torch.Tensor:
        """As :meth:`outputs`, of a tensor [sum(rows), *rest] that holds several, so many rows each.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """

    def inputs(self, name: str, *shape: int) -> torch.Tensor:
        """A share of the columns of the tensor called ``name``.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """

    def rows_of(self, whole: torch.Tensor) -> torch.Tensor:
        """A share of the rows of a tensor that :meth:`whole` gave."""

    def wait(self) -> None:
        """Return when all that was asked for is there.

        Raises:
            ModelLoadError: Something could not be read.
        """


class RankWeights(ABC):
    """Weights whose shares are filled in, at once or later; see :class:`Weights`.

    Attributes:
        device: Where they go.
        dtype: What they become.
        rank: Whose share this is.
        ranks: Among how many.
        num_parameters: Numbers of the whole model, as far as it was asked for.
    """

    def __init__(self, device: torch.device, dtype: torch.dtype, rank: int, ranks: int) -> None:
        self.device = device
        self.dtype = dtype
        self.rank = rank
        self.ranks = ranks
        self.num_parameters = 0

    @abstractmethod
    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Raise ModelLoadError unless there is a tensor called ``name`` of this shape."""

    @abstractmethod
    def fill(self, out: torch.Tensor, name: str, shape: tuple[int, ...], part: Slices) -> None:
        """Fill ``out`` with ``part`` of the tensor ``name``, by the end of :meth:`wait`."""

    @abstractmethod
    def wait(self) -> None:
        """See :class:`Weights`."""

    def whole(self, name: str, *shape: int) -> torch.Tensor:
        """See :class:`Weights`."""
        return self._filled(name, shape, ())

    def outputs(self, rows: Mapping[str, int], *rest: int) -> torch.Tensor:
        """See :class:`Weights`."""
        if self.ranks == 1 and len(rows) == 1:
            ((name, count),) = rows.items()
            return self._filled(name, (count, *rest), ())
        for name, count in rows.items():
            self._expect(name, (count, *rest))
        return self._stacked([(name, (count, *rest), 0, count) for name, count in rows.items()])

    def fused(self, name: str, rows: Sequence[int], *rest: int) -> torch.Tensor:
        """See :class:`Weights`."""
        shape = (sum(rows), *rest)
        if self.ranks == 1:
            return self._filled(name, shape, ())
        self._expect(name, shape)
        firsts = accumulate(rows, initial=0)
        return self._stacked(
            [(name, shape, first, count) for first, count in zip(firsts, rows, strict=False)]
        )

    def inputs(self, name: str, *shape: int) -> torch.Tensor:
        """See :class:`Weights`."""
        return self._filled(name, shape, (slice(0, shape[0]), self._part(shape[1])))

    def rows_of(self, whole: torch.Tensor) -> torch.Tensor:
        """See :class:`Weights`."""
        if self.ranks == 1:
            return whole
        self.wait()
        part = self._part(len(whole))
        out = whole.new_zeros(share(len(whole), self.ranks), *whole.shape[1:])
        out[: part.stop - part.start] = whole[part]
        return out

    def _stacked(self, pieces: Sequence[tuple[str, tuple[int, ...], int, int]]) -> torch.Tensor:
        """A share of each piece, one below the other: (name, shape, first row, rows)."""
        mine = sum(share(count, self.ranks) for _, _, _, count in pieces)
        out = torch.empty(mine, *pieces[0][1][1:], dtype=self.dtype, device=self.device)
        start = 0
        for name, shape, first, count in pieces:
            part, every = self._part(count), share(count, self.ranks)
            there = part.stop - part.start
            rows = slice(first + part.start, first + part.stop)
            self.fill(out[start : start + there], name, shape, (rows,))
            out[start + there : start + every].zero_()
            start += every
        return out

    def _filled(self, name: str, shape: tuple[int, ...], part: Slices) -> torch.Tensor:
        self._expect(name, shape)
        sizes = [p.stop - p.start for p in part] + list(shape[len(part) :])
        out = torch.empty(sizes, dtype=self.dtype, device=self.device)
        self.fill(out, name, shape, part)
        return out

    def _expect(self, name: str, shape: tuple[int, ...]) -> None:
        self.check(name, shape)
        self.num_parameters += math.prod(shape)

    def _part(self, size: int) -> slice:
        each = share(size, self.ranks)
        return slice(min(size, self.rank * each), min(size, (self.rank + 1) * each))

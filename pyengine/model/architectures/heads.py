"""The order of a head's elements, such that one rotation serves all families.

The kernels turn pairs that are half a head apart, and all of them. A query times a key is the same
in any order of elements, as long as both have the same: so weights of families that pair
neighbours, or rotate only the first part of a head, are put into the kernels' order when they are
loaded, and elements that do not rotate get an angle of 0::

    file     a0 b0 a1 b1 p q r s     neighbours, half of the head: two pairs, p to s stay
    kernels  a0 a1 p q b0 b1 r s     angles of the pairs: 1, 2, 0, 0
"""

import numpy as np
from numpy.typing import NDArray

Order = NDArray[np.intp]


def head_order(head_dim: int, rotated: int, *, interleaved: bool) -> Order | None:
    """For each element in the kernels' order, its place in the file's; None where they are equal.

    Args:
        head_dim: Elements of a head.
        rotated: How many of them, from the first on, are rotated.
        interleaved: They are rotated in pairs of neighbours.
    """
    half, pairs = head_dim // 2, rotated // 2
    order = np.empty(head_dim, np.intp)
    first, second = (
        (np.arange(0, rotated, 2), np.arange(1, rotated, 2))
        if interleaved
        else (np.arange(pairs), np.arange(pairs, rotated))
    )
    rest = np.arange(rotated, head_dim)
    order[:half] = np.concatenate((first, rest[: half - pairs]))
    order[half:] = np.concatenate((second, rest[half - pairs :]))
    return None if np.array_equal(order, np.arange(head_dim)) else order


def by_kind(groups: int, widths: tuple[int, ...]) -> Order:
    """The order of rows that puts rows of the same kind side by side.

    Args:
        groups: Groups of neighbouring rows, which have ``widths`` rows of each kind.
        widths: By kind.
    """
    rows = np.arange(groups * sum(widths)).reshape(groups, -1)
    ends = np.cumsum(widths)
    kinds = [rows[:, end - width : end] for end, width in zip(ends, widths, strict=True)]
    return np.concatenate([kind.reshape(-1) for kind in kinds])


def rows_order(order: Order, heads: int, others: int) -> Order:
    """The order of ``heads`` heads' elements; ``others`` elements behind them stay."""
    starts = np.arange(heads)[:, None] * len(order)
    moved = (starts + order).reshape(-1)
    return np.concatenate((moved, np.arange(len(moved), len(moved) + others)))

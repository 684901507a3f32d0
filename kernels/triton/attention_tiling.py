"""How a launch of the attention kernel is cut into programs: constants of its shape alone.

Nothing here may depend on what a step contains: a captured graph keeps what is chosen. Tiles are
such that they fit an H200 (227 KB of shared memory and 65,536 registers to a processor).
"""

from dataclasses import dataclass

import torch

MOST_SPLITS = 128
"""Most parts that the keys of a row are cut into."""

SMALLEST_SPLIT = 128
"""Fewest keys for which a part is worth its program, in the longest context."""


@dataclass(frozen=True)
class Heads:
    """What attention is over.

    Attributes:
        query: Query heads.
        kv: Key and value heads; divides ``query``.
        dim: Elements of a head.
        dtype: Of queries and results.
        kv_dtype: Of the cache.
    """

    query: int
    kv: int
    dim: int
    dtype: torch.dtype
    kv_dtype: torch.dtype

    @property
    def group(self) -> int:
        """Query heads to a key and value head."""
        return self.query // self.kv


@dataclass(frozen=True)
class Tiling:
    """The constants of one launch.

    Attributes:
        rows: Query heads of query tokens that a program works on: a power of two from 16.
        keys: Keys that it loads at a time: a power of two from 16.
        splits: Parts of the keys, each with programs of its own.
        warps: Of a program.
        stages: Of its loads in flight.
    """

    rows: int
    keys: int
    splits: int
    warps: int
    stages: int


def power_of_two(number: int) -> int:
    """The least power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()


def tiling_for(heads: Heads, rows: int, tokens: int, context: int, processors: int) -> Tiling:
    """How to cut a launch.

    Args:
        heads: Heads and types.
        rows: Sequences, those that pad a graph's bucket counted in.
        tokens: Query tokens; as many as rows is decoding.
        context: Most keys that a row can have in any step.
        processors: Of the device.
    """
    dim = power_of_two(heads.dim)
    # float32 goes past the tensor cores, through registers.
    large = heads.dtype == torch.float32 or dim > 128
    wanted = heads.group * -(-tokens // max(1, rows))
    if tokens > 8 * rows:
        wanted = max(wanted, 64)  # one of the rows may be a prompt
    most = 64 if large else 128
    each = max(16, power_of_two(heads.group), min(power_of_two(wanted), most))
    if large:
        keys = 32
    elif heads.kv_dtype.itemsize == 1:
        keys = 128 if each <= 32 else 64
    else:
        keys = 128 if each > 64 else 64
    tiles = rows if tokens <= rows else tokens // (each // heads.group) + rows
    # Four programs fit on a processor where their tiles are small, else one or two.
    programs = processors * (4 if each <= 32 else 2)
    splits = programs // max(1, tiles * heads.kv)
    splits = max(1, min(splits, -(-context // SMALLEST_SPLIT), MOST_SPLITS))
    warps = 8 if each * dim >= 128 * 128 else 4
    return Tiling(each, keys, splits, warps, stages=2 if large else 3)


def parts_size(heads: Heads, processors: int) -> int:
    """Tokens * heads * parts that every launch which cuts keys stays within, and twice as many.

    The other half is for the parts of a prefix that rows share.
    """
    return 2 * processors * max(4 * 32, 2 * 128)

"""How a launch of the attention kernel is cut into programs: constants of its shape alone.

Nothing here may depend on what a step contains: a captured graph keeps what is chosen. Tiles are
such that they fit an H200 (227 KB of shared memory and 65,536 registers to a processor).
"""

from dataclasses import dataclass, replace

import torch

MOST_SPLITS = 128
"""Most parts that the keys of a row are cut into."""

SMALLEST_SPLIT = 128
"""Fewest keys for which a part is worth its program, in the longest context."""


@dataclass(frozen=True)
class Heads:
    """The heads that attention is over.

    Attributes:
        query: Query heads.
        kv: Key and value heads; divides ``query``.
        dim: Elements of a head.
        dtype: The type of queries and results.
        kv_dtype: The type of the cache.
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
        warps: The warps of a program.
        stages: The stages of its loads in flight.
    """

    rows: int
    keys: int
    splits: int
    warps: int
    stages: int


def power_of_two(number: int) -> int:
    """The least power of two that is not below ``number``."""
    return 1 << max(0, number - 1).bit_length()


def tiling_for(
    heads: Heads,
    rows: int,
    tokens: int,
    *,
    one_query: bool,
    context: int,
    processors: int,
    prompts: bool = False,
) -> Tiling:
    """How to cut a launch.

    Args:
        heads: Heads and types.
        rows: Sequences, those that pad a graph's bucket counted in.
        tokens: Query tokens.
        one_query: Every row has one.
        context: Most keys that a row can have in any step.
        processors: The multiprocessors of the device.
        prompts: One of the rows is a long prompt, which smaller tiles would read its keys for more
            often.
    """
    # Of a graph's rows most may have no queries, and those of another all.
    each = 1 if one_query else max(8, -(-tokens // max(1, rows)))
    if prompts or tokens > 8 * rows:
        each = max(each, 64 // heads.group)  # one of the rows may be a prompt
    tile = _tile(heads, heads.group * each)
    queries = tile.rows // heads.group
    busy = rows if one_query else -(-tokens // queries) + min(rows, tokens) // 4
    return _split(tile, busy * heads.kv, context, processors, MOST_SPLITS)


def prefix_tiling_for(
    heads: Heads, tokens: int, *, context: int, processors: int, splits: int
) -> Tiling:
    """How to cut the launch in which all tokens attend to a shared prefix, into at most ``splits``
    parts of the keys; otherwise as :func:`tiling_for`.
    """
    tile = _tile(heads, heads.group * tokens)
    tiles = -(-tokens // (tile.rows // heads.group))
    return _split(tile, tiles * heads.kv, context, processors, splits)


def token_counts(heads: Heads, rows: int, most: int) -> list[int]:
    """Numbers of tokens of ``rows``, up to ``most``, at which tiles begin to be larger or splits
    are fewest: whatever :func:`tiling_for` gives, it gives for one of them in kind.
    """
    # A tile is for a power of two of query heads; see tiling_for.
    sizes = [rows * (1 << power) // heads.group for power in range(4, 8)]
    bounds = [size + more for size in (rows, 8 * rows, *sizes) for more in (0, 1)]
    return sorted({count for count in (*bounds, most) if rows <= count <= most})


def parts_size(processors: int) -> int:
    """Most tokens * heads * parts of a launch that cuts keys and in which no prefix is shared."""
    return processors * max(3 * 16, 2 * 128)


def _tile(heads: Heads, wanted: int) -> Tiling:
    """A tile for ``wanted`` query heads of query tokens of a key and value head, not split."""
    dim = power_of_two(heads.dim)
    # float32 goes past the tensor cores, through registers.
    slow = heads.dtype == torch.float32
    large = slow or dim > 128
    # Of 512 elements the sums of 64 queries are more than a warp group's registers.
    most = (16 if slow else 32) if dim > 256 else 64 if large else 128
    rows = max(16, power_of_two(heads.group), min(power_of_two(wanted), most))
    # The scores of a tile are in registers: of 128 keys only where 8 warps have little else.
    many = rows > 64 and dim > 64 and heads.kv_dtype.itemsize > 1
    keys = 16 if slow and dim > 256 else 32 if large else 128 if many else 64
    warps = 8 if rows >= 128 or rows * dim >= 128 * 128 or dim > 256 else 4
    # Where a page is must be loaded first, and takes stages too. Below a warp group's 64 rows
    # Triton gives a tile one buffer with up to four, and with five a second to load into.
    if heads.dtype == torch.float32:
        stages = 2
    elif rows <= 32:
        stages = 5
    else:
        stages = 2 if large else 3
    return Tiling(rows, keys, 1, warps, stages)


def _split(tile: Tiling, programs: int, context: int, processors: int, most: int) -> Tiling:
    """``tile`` with as many splits as keep the processors busy."""
    # Three programs fit on a processor where their tiles are small, else one or two.
    room = processors * (3 if tile.rows <= 16 else 2)
    splits = min(room // max(1, programs), -(-context // SMALLEST_SPLIT), most)
    return replace(tile, splits=max(1, splits))

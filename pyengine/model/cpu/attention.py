"""The KV cache of the CPU's paged attention, as its Rust kernel reads it."""

import math
import mmap
from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.cache_groups import slots_of
from pyengine.model.runner import ModelInfo


def cache_array(*shape: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros for a KV cache: taken from the system as they are written, in huge pages if it can.

    A cache is read in scattered blocks, and with small pages most blocks would miss the TLB.
    """
    memory = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses: the cache is slower then, and as good.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


def make_cache(
    info: ModelInfo, num_blocks: int, dtype: np.dtype[Any]
) -> list[tuple[NDArray[Any], NDArray[Any]]]:
    """Keys [pages, kv heads, head_dim, block_size] and values [pages, kv heads, block_size,
    head_dim] of each slot of a page; memory is taken from the system as pages are used.
    """
    heads, block, dim = info.num_kv_heads, info.block_size, info.head_dim
    return [
        (
            cache_array(num_blocks, heads, dim, block, dtype=dtype),
            cache_array(num_blocks, heads, block, dim, dtype=dtype),
        )
        for _ in range(slots_of(info.cache_groups))
    ]

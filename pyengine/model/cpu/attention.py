"""Paged attention on the CPU, and its KV cache as the Rust kernel reads it."""

import math
import mmap
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuStep, CpuTensor
from pyengine.model.architectures.parts import Buffer, LayerAttention
from pyengine.model.cache_groups import places, slots_of
from pyengine.model.cpu.executor import Executor
from pyengine.model.dtypes import cpu_tensor
from pyengine.model.layer_heads import unit_of
from pyengine.model.runner import ModelInfo


def cache_array(*shape: int, dtype: np.dtype[Any]) -> NDArray[Any]:
    """Zeros for a KV cache: taken from the system as they are written, in huge pages if it can.

    A cache is read in scattered blocks, and with small pages most blocks would miss the TLB.
    """
    # Python shares a mapping with its children unless told otherwise, and shared pages stay small.
    private = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
    memory = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize, flags=private)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses: the cache is slower then, and as good.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(memory, dtype, math.prod(shape)).reshape(shape)


Cache = tuple[NDArray[Any], NDArray[Any]]
"""Keys [pages, kv heads, head_dim, block_size], values [pages, kv heads, block_size, head_dim]."""


def make_cache(info: ModelInfo, num_blocks: int, dtype: np.dtype[Any]) -> dict[int, Cache]:
    """The cache of each layer that has one; memory is taken from the system as pages are used.

    Each slot of a page has an array of its own. Where layers take several slots, all slots are in
    one array, and a layer's cache is a view of it with room between blocks::

        page   | layer 0 | layer 1 |      or, under another page table,      |      layer 5      |
    """
    heads, block, slots = info.heads, info.block_size, slots_of(info.cache_groups)
    unit = unit_of(heads) * block
    alone = all(layer.size in (0, unit_of(heads)) for layer in heads)
    widths = [unit] * slots if alone else [unit * slots]
    arrays = [
        tuple(cache_array(num_blocks, width, dtype=dtype) for _ in range(2)) for width in widths
    ]
    caches = {}
    for layer, (_, slot) in places(info.cache_groups).items():
        kv, dim, size = heads[layer].kv_heads, heads[layer].head_dim, heads[layer].size * block
        array, first = (slot, 0) if alone else (0, slot * unit)
        keys, values = (each[:, first : first + size] for each in arrays[array])
        caches[layer] = (
            keys.reshape(num_blocks, kv, dim, block),
            values.reshape(num_blocks, kv, block, dim),
        )
    return caches


@dataclass
class CpuStepTensors:
    """A step as the kernels see it: views of one set of step buffers.

    Attributes:
        token_ids: int32 [T].
        positions: int32 [T].
        logit_token: int32 [L].
        pool_token: int32 [P].
        prompt_token: int32 [P].
        attention: What attention reads, by page table.
    """

    token_ids: CpuTensor
    positions: CpuTensor
    logit_token: CpuTensor
    pool_token: CpuTensor
    prompt_token: CpuTensor
    attention: list[CpuStep]


class Attention:
    """Causal attention over a paged cache."""

    def __init__(
        self,
        executor: Executor,
        info: ModelInfo,
        layers: Sequence[LayerAttention],
        num_blocks: int,
        dtype: np.dtype[Any],
    ) -> None:
        self._executor = executor
        self._num_heads = info.num_heads
        caches = {
            layer: (cpu_tensor(keys), cpu_tensor(values))
            for layer, (keys, values) in make_cache(info, num_blocks, dtype).items()
        }
        tables = {layer: table for layer, (table, _) in places(info.cache_groups).items()}
        # Whose keys and values each layer attends to.
        sources = [
            index if heads.reads is None else heads.reads for index, heads in enumerate(info.heads)
        ]
        self._caches = [(tables[source], *caches[source]) for source in sources]
        self._layers = list(layers)
        self._stores = [heads.reads is None for heads in info.heads]
        self._angles = [cpu_tensor(layer.angles) for layer in layers]
        self._sinks = [
            None if layer.sinks is None else cpu_tensor(np.array(layer.sinks, np.float32))
            for layer in layers
        ]
        self._temperatures = [
            None if layer.temperatures is None else cpu_tensor(layer.temperatures)
            for layer in layers
        ]

    def __call__(
        self, layer: int, step: CpuStepTensors, qkv: Buffer, out: Buffer, tokens: int
    ) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        table, keys, values = self._caches[layer]
        how = self._layers[layer]
        self._executor.program.attend(
            step.attention[table],
            qkv.kernel,
            self._angles[layer],
            keys,
            values,
            out.kernel,
            self._num_heads,
            how.scale,
            window=how.window,
            chunk=how.chunk,
            soft_cap=how.soft_cap,
            sinks=self._sinks[layer],
            temperatures=self._temperatures[layer],
            stores=self._stores[layer],
        )

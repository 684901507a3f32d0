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


@dataclass
class CpuStepTensors:
    """A step as the kernels see it: views of one set of step buffers.

    Attributes:
        token_ids: int32 [T].
        logit_token: int32 [L].
        pool_token: int32 [P].
        attention: What attention reads, by page table.
    """

    token_ids: CpuTensor
    logit_token: CpuTensor
    pool_token: CpuTensor
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
        self._caches = [
            (cpu_tensor(keys), cpu_tensor(values))
            for keys, values in make_cache(info, num_blocks, dtype)
        ]
        self._places = places(info.cache_groups)
        self._layers = list(layers)
        self._angles = [cpu_tensor(layer.angles) for layer in layers]
        self._sinks = [
            None if layer.sinks is None else cpu_tensor(np.array(layer.sinks, np.float32))
            for layer in layers
        ]

    def __call__(
        self, layer: int, step: CpuStepTensors, qkv: Buffer, out: Buffer, tokens: int
    ) -> None:
        """Rotate queries and keys, store keys and values, attend."""
        table, slot = self._places[layer]
        keys, values = self._caches[slot]
        how = self._layers[layer]
        self._executor.target.attend(
            step.attention[table],
            qkv.kernel,
            self._angles[layer],
            keys,
            values,
            out.kernel,
            self._num_heads,
            how.scale,
            window=how.window,
            soft_cap=how.soft_cap,
            sinks=self._sinks[layer],
        )

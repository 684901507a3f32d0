"""Paged attention on the CPU: the KV cache, and the Rust kernel over it."""

import math
import mmap
from contextlib import suppress

import torch

from pyengine._core import CpuStep
from pyengine.errors import ModelLoadError
from pyengine.model.layers import Kernels, Ops, Workspace, cpu_tensor
from pyengine.model.runner import ModelInfo


def cache_tensor(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Zeros for a KV cache: taken from the system as they are written, in huge pages if it can.

    A cache is read in scattered blocks, and with small pages most blocks would miss the TLB.
    """
    memory = mmap.mmap(-1, max(1, math.prod(shape)) * dtype.itemsize)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        # A kernel without huge pages refuses: the cache is slower then, and as good.
        with suppress(OSError):
            memory.madvise(mmap.MADV_HUGEPAGE)
    return torch.frombuffer(memory, dtype=dtype, count=math.prod(shape)).view(shape)


class PagedAttention:
    """The KV cache of all layers, and attention over it. One thread at a time.

    A layer's keys are [blocks, kv heads, head_dim, block_size] and its values
    [blocks, kv heads, block_size, head_dim]; memory is taken from the system as blocks are used.
    """

    def __init__(
        self, info: ModelInfo, kernels: Kernels, dtype: torch.dtype, angles: torch.Tensor
    ) -> None:
        """Make the cache.

        Args:
            info: Heads and layers.
            kernels: Threads, and the number of blocks.
            dtype: Of the cache, and of what is attended.
            angles: float32 [context, head_dim], cosines, then sines.

        Raises:
            ModelLoadError: The kernel does not do heads of this shape.
        """
        if info.head_dim % 8 or info.num_heads % info.num_kv_heads:
            raise ModelLoadError(
                f"heads of {info.head_dim} elements, {info.num_heads} over {info.num_kv_heads}, "
                "are not supported: head_dim must be a multiple of 8 and the heads divisible"
            )
        self._angles = cpu_tensor(angles)
        self._num_heads = info.num_heads
        self._scale = info.head_dim**-0.5
        blocks, block, dim = kernels.num_blocks, info.block_size, info.head_dim
        self._layers = [
            (
                cpu_tensor(cache_tensor(blocks, info.num_kv_heads, dim, block, dtype=dtype)),
                cpu_tensor(cache_tensor(blocks, info.num_kv_heads, block, dim, dtype=dtype)),
            )
            for _ in range(info.num_layers)
        ]

    def __call__(self, on: Ops, layer: int, step: CpuStep, qkv: Workspace, out: Workspace) -> None:
        """Rotate queries and keys, store keys and values, attend.

        ``qkv`` is [tokens, (heads + 2 * kv heads) * head_dim], ``out`` [tokens, heads * head_dim].
        """
        keys, values = self._layers[layer]
        on.attend(
            step,
            qkv.kernel,
            self._angles,
            keys,
            values,
            out.kernel,
            self._num_heads,
            self._scale,
        )

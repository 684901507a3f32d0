"""Whole blocks of the KV cache copied, in all layers by one kernel: for forks and compaction.

Bytes moved: two for each byte of a block, in every cache; that is the limit. A program copies
``WORDS`` words of 8 bytes; a block of 16 tokens with 8 heads of 128 in bfloat16 is four programs in
each of the keys and values of each layer.

The engine does not call it yet: it shares full blocks alone, which are not written any more, and so
copies none. It is there, tested and measured, for whoever forks or moves blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from pyengine.kernels.language import tl, triton

WORDS = 1024
"""Words of 8 bytes that a program copies."""


@dataclass(frozen=True)
class BlockCaches:
    """Caches whose blocks are copied together: keys and values of every layer.

    Attributes:
        tensors: Each [blocks, ...], every block in one piece; alike in shape, type and strides.
        addresses: int64 [caches], on their device: where each begins.
        block_bytes: Bytes of a block, a multiple of 8.
        stride_bytes: Bytes from the beginning of a block to that of the next.
    """

    tensors: tuple[torch.Tensor, ...]
    addresses: torch.Tensor
    block_bytes: int
    stride_bytes: int

    @classmethod
    def of(cls, tensors: Sequence[torch.Tensor]) -> "BlockCaches":
        """Make the table; allocates, and copies to the device, so do it once.

        Raises:
            ValueError: The caches are not alike, or a block is not whole words in one piece.
        """
        model = tensors[0]
        if not model[0].is_contiguous():
            raise ValueError("each block of a cache must be in one piece")
        for tensor in tensors:
            kind = (tensor.shape, tensor.stride(), tensor.dtype, tensor.device)
            if kind != (model.shape, model.stride(), model.dtype, model.device):
                raise ValueError("caches that are copied together must be alike")
        size = model.element_size()
        block, stride = model[0].numel() * size, model.stride(0) * size
        addresses = [tensor.data_ptr() for tensor in tensors]
        if any(number % 8 for number in (block, stride, *addresses)):
            raise ValueError(f"blocks of {block} bytes, {stride} apart, are not words of 8 bytes")
        table = torch.tensor(addresses, dtype=torch.int64, device=model.device)
        return cls(tuple(tensors), table, block, stride)

    @property
    def aligned(self) -> bool:
        """Whether every block begins where 16 bytes do, and is a multiple of them."""
        begins = [tensor.data_ptr() for tensor in self.tensors]
        return not any(n % 16 for n in (self.block_bytes, self.stride_bytes, *begins))


@triton.jit
def copy_blocks_kernel(
    addresses_ptr, sources_ptr, targets_ptr, block_words, stride_words,
    ALIGNED: tl.constexpr, WORDS: tl.constexpr,
):  # fmt: skip
    """A grid of pairs, caches and parts of a block."""
    source = tl.load(sources_ptr + tl.program_id(0)).to(tl.int64)
    target = tl.load(targets_ptr + tl.program_id(0)).to(tl.int64)
    address = tl.load(addresses_ptr + tl.program_id(1))
    cache_ptr = address.to(tl.pointer_type(tl.int64))
    if ALIGNED:
        cache_ptr = tl.multiple_of(cache_ptr, 16)
    word = tl.program_id(2) * WORDS + tl.arange(0, WORDS)
    inside = word < tl.where((source >= 0) & (target >= 0), block_words, 0)
    copied = tl.load(cache_ptr + source * stride_words + word, mask=inside)
    tl.store(cache_ptr + target * stride_words + word, copied, mask=inside)


def copy_blocks(caches: BlockCaches, sources: torch.Tensor, targets: torch.Tensor) -> None:
    """Copy block ``sources[i]`` over block ``targets[i]`` for each i, in every cache.

    Pairs are copied in no order: a target may be no other pair's source or target. Queues one
    kernel on the current stream; can be captured.

    Args:
        caches: Of all layers.
        sources: int32 [pairs]; -1 in either: no such pair.
        targets: int32 [pairs].
    """
    _check(sources, targets)
    words = caches.block_bytes // 8
    if len(sources) == 0 or words == 0:
        return
    size = min(WORDS, triton.next_power_of_2(words))
    copy_blocks_kernel[(len(sources), len(caches.tensors), triton.cdiv(words, size))](
        caches.addresses, sources, targets, words, caches.stride_bytes // 8,
        ALIGNED=caches.aligned, WORDS=size, enable_fp_fusion=False,
    )  # fmt: skip


def copy_blocks_reference(
    caches: BlockCaches, sources: torch.Tensor, targets: torch.Tensor
) -> None:
    """As :func:`copy_blocks`, in torch; allocates."""
    _check(sources, targets)
    kept = (sources >= 0) & (targets >= 0)
    for cache in caches.tensors:
        # As bytes, for torch does not index float8 everywhere.
        blocks = cache.view(torch.uint8)
        blocks[targets[kept].long()] = blocks[sources[kept].long()]


def _check(sources: torch.Tensor, targets: torch.Tensor) -> None:
    if sources.shape != targets.shape or sources.ndim != 1:
        raise ValueError("there must be as many sources as targets")

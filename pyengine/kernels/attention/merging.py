"""Merging what the parts of a row's keys gave: the second kernel of Flash-Decoding.

A part's result is the mean of its values under its own softmax, with the logarithm of the sum of
its weights. The results of all parts, weighted by those sums, are the softmax over all keys.
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.attention.tiling import power_of_two
from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

FEW_PARTS, MANY_PARTS = 4, 32
"""Parts that the merging kernel loads at a time."""


@dataclass(frozen=True)
class Parts:
    """Memory for the results of the parts of the keys, before they are merged.

    Attributes:
        values: float32, at least tokens * heads * parts * head_dim.
        sums: float32, at least tokens * heads * parts: logarithms to base 2.
    """

    values: torch.Tensor
    sums: torch.Tensor


def room_for(parts: Parts | None, out: torch.Tensor, count: int) -> Parts:
    """The memory for ``count`` parts; for one, which is the result, anything will do."""
    if parts is None:
        if count > 1:
            raise ValueError("keys that are cut into parts take memory to merge them")
        return Parts(out, out)
    if count > 1 and parts.values.numel() < out.numel() * count:
        raise ValueError(f"{count} parts of {len(out)} tokens are more than there is memory for")
    return parts


@triton.jit(do_not_specialize=["parts"])
def merge_kernel(
    out_ptr, part_values_ptr, part_sums_ptr, parts, out_stride,
    HEAD_DIM: tl.constexpr, DIM: tl.constexpr, AT_ONCE: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a token and query head: the parts, weighted by their sums."""
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    first = (token * tl.num_programs(1) + head) * parts
    dims = tl.arange(0, DIM)
    best = tl.full([], float("-inf"), tl.float32)
    total = tl.full([], 0.0, tl.float32)
    result = tl.zeros([DIM], tl.float32)
    wait_for_inputs(CHAINED)
    for start in range(0, parts, AT_ONCE):
        part = start + tl.arange(0, AT_ONCE)
        sums = tl.load(part_sums_ptr + first + part, mask=part < parts, other=float("-inf"))
        peak = tl.maximum(best, tl.max(sums, axis=0))
        base = tl.where(peak == float("-inf"), 0.0, peak)
        weights = tl.exp2(sums - base)
        shrunk = tl.exp2(best - base)
        mask = (weights > 0.0)[:, None] & (dims < HEAD_DIM)[None, :]
        at = (first + part) * HEAD_DIM
        values = tl.load(part_values_ptr + at[:, None] + dims[None, :], mask=mask, other=0.0)
        total = total * shrunk + tl.sum(weights, axis=0)
        result = result * shrunk + tl.sum(values * weights[:, None], axis=0)
        best = peak
    result = result / tl.where(total == 0.0, 1.0, total)
    pointers = out_ptr + token * out_stride + head * HEAD_DIM + dims
    tl.store(pointers, result.to(out_ptr.dtype.element_ty), mask=dims < HEAD_DIM)


def merge(out: torch.Tensor, parts: Parts, count: int) -> None:
    """Merge ``count`` parts of every token and query head, on the current stream.

    Args:
        out: [tokens, heads, head_dim], written.
        parts: The results of the parts.
        count: How many there are.
    """
    tokens, heads, head_dim = out.shape
    merge_kernel[(tokens, heads)](
        out, parts.values, parts.sums, count, out.stride(0),
        HEAD_DIM=head_dim, DIM=max(16, power_of_two(head_dim)),
        AT_ONCE=FEW_PARTS if count <= FEW_PARTS else MANY_PARTS,
        num_warps=4, enable_fp_fusion=True, **chained(out.device),
    )  # fmt: skip

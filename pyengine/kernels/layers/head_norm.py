"""RMS normalization of each query and key head of qkv, in place (Henry et al., "Query-Key
Normalization for Transformers", 2020, with RMS norms as Qwen3 has them).

Rounds where ``kernels/cpu/src/norm.rs`` does: the normalized number and its product with the
weight, each to the type of the tensors; all between is float32.

Bytes moved: queries and keys read and written once, 2 * tokens * (heads + kv heads) * head_dim
numbers; the two weights stay in the cache. A program has whole heads of a token, as ``rope.py``
has. Bytes are the limit for many tokens; for few, one head's loads, sum and stores.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

NUMBERS = 2048
"""Numbers that a program works on at most, head dimensions counted as powers of two."""


@triton.jit
def head_rms_norm_kernel(
    qkv_ptr, qkv_stride, query_weight_ptr, key_weight_ptr, num_heads, normed_heads, count, epsilon,
    DIM: tl.constexpr, DIM_BLOCK: tl.constexpr, HEADS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tokens and groups of ``HEADS`` heads, of queries, then keys.

    A head has ``DIM`` numbers, as float32 ``count``.
    """
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
    i = tl.arange(0, DIM_BLOCK)[None, :]  # [1, DIM_BLOCK]
    inside = (i < DIM) & (head < normed_heads)
    qkv_ptr += token * qkv_stride + head * DIM + i
    kind = qkv_ptr.dtype.element_ty
    of_query = tl.load(query_weight_ptr + i, mask=i < DIM, other=0.0).to(tl.float32)
    of_key = tl.load(key_weight_ptr + i, mask=i < DIM, other=0.0).to(tl.float32)
    weight = tl.where(head < num_heads, of_query, of_key)
    wait_for_inputs(CHAINED)
    value = tl.load(qkv_ptr, mask=inside, other=0.0).to(tl.float32)
    mean = tl.div_rn(tl.sum(value * value, axis=1), count)
    factor = tl.div_rn(1.0, tl.sqrt_rn(mean + epsilon))
    normal = (value * factor[:, None]).to(kind).to(tl.float32)
    tl.store(qkv_ptr, (normal * weight).to(kind), mask=inside)


def head_rms_norm(
    qkv: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    num_heads: int,
    epsilon: float,
) -> None:
    """Normalize the query heads and the key heads of each token in place; values stay.

    Queues one kernel on the current stream; can be captured.

    Args:
        qkv: [tokens, (num_heads + 2 * kv heads) * head_dim]: queries, keys, values; float32,
            bfloat16 or float16, each row in one piece.
        query_weight: [head_dim], of every query head.
        key_weight: [head_dim], of every key head.
        num_heads: Query heads.
        epsilon: Added to the mean of the squares.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    normed_heads = _check(qkv, query_weight, key_weight, num_heads)
    tokens, dim = len(qkv), len(query_weight)
    if tokens == 0:
        return
    dim_block = triton.next_power_of_2(dim)
    group = min(max(NUMBERS // dim_block, 1), triton.next_power_of_2(normed_heads))
    head_rms_norm_kernel[(tokens, triton.cdiv(normed_heads, group))](
        qkv, qkv.stride(0), query_weight, key_weight, num_heads, normed_heads, float(dim), epsilon,
        DIM=dim, DIM_BLOCK=dim_block, HEADS=group, enable_fp_fusion=True,
        **chained(qkv.device),
    )  # fmt: skip


def head_rms_norm_reference(
    qkv: torch.Tensor,
    query_weight: torch.Tensor,
    key_weight: torch.Tensor,
    num_heads: int,
    epsilon: float,
) -> None:
    """As :func:`head_rms_norm`, in torch."""
    normed_heads = _check(qkv, query_weight, key_weight, num_heads)
    dim = len(query_weight)
    heads = qkv[:, : normed_heads * dim].unflatten(1, (normed_heads, dim))  # a view of qkv
    value = heads.float()
    factor = 1.0 / (value.square().mean(dim=2, keepdim=True) + epsilon).sqrt()
    normal = (value * factor).to(qkv.dtype).float()
    heads[:, :num_heads] = (normal[:, :num_heads] * query_weight.float()).to(qkv.dtype)
    heads[:, num_heads:] = (normal[:, num_heads:] * key_weight.float()).to(qkv.dtype)


def _check(
    qkv: torch.Tensor, query_weight: torch.Tensor, key_weight: torch.Tensor, num_heads: int
) -> int:
    """How many heads are normalized: those of queries and keys."""
    if query_weight.ndim != 1 or query_weight.shape != key_weight.shape or not len(query_weight):
        raise ValueError("the weights must be [head_dim] both")
    for weight in (query_weight, key_weight):
        if weight.dtype != qkv.dtype or not weight.is_contiguous():
            raise ValueError(f"the weights must be {qkv.dtype}, in one piece")
    if qkv.ndim != 2 or qkv.stride(1) != 1:
        raise ValueError("qkv must be [tokens, width], rows in one piece")
    heads, rest = divmod(qkv.shape[1], len(query_weight))
    if rest or heads < num_heads or (heads - num_heads) % 2:
        raise ValueError(
            f"rows of {qkv.shape[1]} are not {num_heads} query heads of {len(query_weight)}, keys "
            "and values"
        )
    return (heads + num_heads) // 2

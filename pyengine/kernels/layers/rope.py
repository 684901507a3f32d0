"""Rotary position embedding, and keys and values into the paged cache, in one pass over qkv.

The half-split form (Su et al., "RoFormer", as Llama applies it), in float32 as in
``kernels/cpu/src/rope.rs``. What is rotated is rounded once, from float32 to the type that it is
stored in: queries to that of qkv, keys to that of the cache. To float8_e4m3fn keys and values go
divided by scales, with which they are multiplied as they are read; its largest number is 448: what
is beyond becomes 448 with its sign, infinity too, and NaN stays NaN.

Bytes moved: for each token its qkv read once, its queries, keys and values written once; head_dim
float32 angles. A program has ``NUMBERS`` of a token's numbers: whole heads, each thread
neighbouring numbers of one. Bytes are the limit for many tokens; for few, the chain of loads:
position, angles, stores.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

NUMBERS = 2048
"""Numbers that a program works on at most, head dimensions counted as powers of two."""


@triton.jit
def fit(value, scale, kind: tl.constexpr):
    """Float32 to ``kind``; to float8 in units of ``scale`` and without overflow."""
    if kind == tl.float8e4nv:
        value = tl.div_rn(value, scale)
        value = tl.where(value > 448.0, 448.0, value)
        value = tl.where(value < -448.0, -448.0, value)
    return value.to(kind)


@triton.jit
def rope_append_kernel(
    qkv_ptr, qkv_stride, angles_ptr, angles_stride, positions_ptr, slots_ptr,
    keys_ptr, key_block, key_token, key_head, values_ptr, value_block, value_token, value_head,
    num_heads, num_kv_heads, block_size, key_scale, value_scale,
    HALF: tl.constexpr, HALF_BLOCK: tl.constexpr, HEADS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tokens and groups of ``HEADS`` heads, of queries, then keys, then values."""
    token = tl.program_id(0)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)[:, None]  # [HEADS, 1]
    i = tl.arange(0, HALF_BLOCK)[None, :]  # [1, HALF_BLOCK]
    wait_for_inputs(CHAINED)  # for the step's own fields too
    slot = tl.load(slots_ptr + token)
    angles_ptr += tl.load(positions_ptr + token).to(tl.int64) * angles_stride
    cosines = tl.load(angles_ptr + i, mask=i < HALF, other=0.0)
    sines = tl.load(angles_ptr + HALF + i, mask=i < HALF, other=0.0)

    inside = (i < HALF) & (head < num_heads + 2 * num_kv_heads)
    low_ptr = qkv_ptr + token.to(tl.int64) * qkv_stride + head * (2 * HALF) + i
    low = tl.load(low_ptr, mask=inside, other=0.0).to(tl.float32)
    high = tl.load(low_ptr + HALF, mask=inside, other=0.0).to(tl.float32)
    turned_low = low * cosines - high * sines
    turned_high = high * cosines + low * sines
    is_query = inside & (head < num_heads)
    kind = qkv_ptr.dtype.element_ty
    tl.store(low_ptr, turned_low.to(kind), mask=is_query)
    tl.store(low_ptr + HALF, turned_high.to(kind), mask=is_query)

    stored = tl.where(slot >= 0, num_kv_heads, 0)
    block = (slot // block_size).to(tl.int64)
    offset = (slot % block_size).to(tl.int64)
    key = head - num_heads
    is_key = inside & (key >= 0) & (key < stored)
    low_ptr = keys_ptr + block * key_block + offset * key_token + key * key_head + i
    kind = keys_ptr.dtype.element_ty
    tl.store(low_ptr, fit(turned_low, key_scale, kind), mask=is_key)
    tl.store(low_ptr + HALF, fit(turned_high, key_scale, kind), mask=is_key)
    value = key - num_kv_heads
    is_value = inside & (value >= 0) & (value < stored)
    low_ptr = values_ptr + block * value_block + offset * value_token + value * value_head + i
    tl.store(low_ptr, fit(low, value_scale, kind), mask=is_value)
    tl.store(low_ptr + HALF, fit(high, value_scale, kind), mask=is_value)


def rope_append(
    qkv: torch.Tensor,
    angles: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """Rotate the queries in place, and write rotated keys and values of each token into the cache.

    Queues one kernel on the current stream; can be captured. Keys and values in ``qkv`` stay.

    Args:
        qkv: [tokens, (num_heads + 2 * kv heads) * head_dim]: queries, keys, values; float32,
            bfloat16 or float16, each row in one piece. head_dim is even.
        angles: float32 [context, head_dim], cosines, then sines.
        positions: int32 [tokens or more].
        slot_mapping: int32 [tokens or more]: block * block_size + offset, or -1: the token's keys
            and values go nowhere.
        keys: A layer's cache, [blocks, block_size, kv heads, head_dim], the last in one piece; of
            the type of qkv or another, float8_e4m3fn too.
        values: Like ``keys``.
        num_heads: Query heads.
        key_scale: Of a cache of float8_e4m3fn, what its keys are multiplied by as they are read.
        value_scale: The same of its values.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(qkv, angles, positions, slot_mapping, keys, values, num_heads)
    tokens, (_, block_size, num_kv_heads, dim) = len(qkv), keys.shape
    if tokens == 0:
        return
    half_block = triton.next_power_of_2(dim // 2)
    heads = num_heads + 2 * num_kv_heads
    group = min(max(NUMBERS // (2 * half_block), 1), triton.next_power_of_2(heads))
    rope_append_kernel[(tokens, triton.cdiv(heads, group))](
        qkv, qkv.stride(0), angles, angles.stride(0), positions, slot_mapping,
        keys, *keys.stride()[:3], values, *values.stride()[:3],
        num_heads, num_kv_heads, block_size, float(key_scale), float(value_scale),
        HALF=dim // 2, HALF_BLOCK=half_block, HEADS=group, enable_fp_fusion=True,
        **chained(qkv.device),
    )  # fmt: skip


def rope_append_reference(
    qkv: torch.Tensor,
    angles: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
    key_scale: float = 1.0,
    value_scale: float = 1.0,
) -> None:
    """As :func:`rope_append`, in torch."""
    _check(qkv, angles, positions, slot_mapping, keys, values, num_heads)
    tokens, (_, block_size, num_kv_heads, dim) = len(qkv), keys.shape
    heads = qkv.unflatten(1, (num_heads + 2 * num_kv_heads, dim))  # [tokens, heads, dim], a view
    turn = angles[positions[:tokens].long()]
    cosines, sines = turn[:, None].split(dim // 2, dim=2)
    low, high = heads[:, : num_heads + num_kv_heads].float().split(dim // 2, dim=2)
    turned = torch.cat((low * cosines - high * sines, high * cosines + low * sines), dim=2)
    heads[:, :num_heads] = turned[:, :num_heads].to(qkv.dtype)
    slots = slot_mapping[:tokens].long()
    kept = slots >= 0
    place = (slots[kept] // block_size, slots[kept] % block_size)
    new_values = heads[:, num_heads + num_kv_heads :].float()
    stored = (keys, turned[:, num_heads:], key_scale), (values, new_values, value_scale)
    for cache, new, scale in stored:
        if cache.dtype == torch.float8_e4m3fn:
            # Stored as bytes, for torch does not scatter float8 everywhere.
            fitting = (new[kept] / scale).clamp(-448.0, 448.0).to(cache.dtype)
            cache.view(torch.uint8)[place] = fitting.view(torch.uint8)
        else:
            cache[place] = new[kept].to(cache.dtype)


def _check(
    qkv: torch.Tensor,
    angles: torch.Tensor,
    positions: torch.Tensor,
    slot_mapping: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    num_heads: int,
) -> None:
    tokens, (_, _, num_kv_heads, dim) = len(qkv), keys.shape
    if qkv.shape[1] != (num_heads + 2 * num_kv_heads) * dim or dim % 2:
        raise ValueError(f"{num_heads} heads and a cache of {[*keys.shape]}, qkv {[*qkv.shape]}")
    if values.shape != keys.shape or values.dtype != keys.dtype:
        raise ValueError("keys and values must have one shape and one type")
    if qkv.stride(1) != 1 or keys.stride(3) != 1 or values.stride(3) != 1:
        raise ValueError("each token of qkv and each head of the cache must be in one piece")
    if angles.dtype != torch.float32 or angles.shape[1] != dim or angles.stride(1) != 1:
        raise ValueError(f"angles must be float32 [context, {dim}]")
    if min(len(positions), len(slot_mapping)) < tokens:
        raise ValueError("there are fewer positions or slots than tokens")

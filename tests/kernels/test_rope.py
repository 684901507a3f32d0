"""Rotation and the writing of the cache in Triton, in torch and in Rust."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import CpuKernels, CpuStep, step_numbers
from pyengine.kernels.layers.rope import rope_append, rope_append_reference
from pyengine.model.cpu.executor import run_once
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, cpu_tensor, random, rows_of

FLOAT8 = torch.float8_e4m3fn
# One rounding; float32 differs by a fused multiplication, which shows where two products cancel.
UNITS = {torch.float32: 4, torch.bfloat16: 1, torch.float16: 1, FLOAT8: 1}
FLOORS = {torch.float32: 1e-6, torch.bfloat16: 1e-6, torch.float16: 1e-6, FLOAT8: 2.0**-9}


def angles_of(context: int, dim: int) -> torch.Tensor:
    turns = torch.outer(torch.arange(context), 0.7 ** torch.arange(dim // 2))
    return torch.cat((turns.cos(), turns.sin()), dim=1).float().contiguous().to(DEVICE)


def int32(values: Any) -> torch.Tensor:
    return torch.tensor(np.asarray(values), dtype=torch.int32, device=DEVICE)


def cache(blocks: int, size: int, heads: int, dim: int, dtype: torch.dtype) -> torch.Tensor:
    """One layer's keys or values; -7 everywhere, so that it shows what was written."""
    return torch.full((blocks, size, heads, dim), -7.0, device=DEVICE).to(dtype)


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(0, 5),
    heads=st.sampled_from([(1, 1), (4, 2), (6, 6), (5, 1), (32, 8)]),
    dim=st.sampled_from([8, 24, 64, 80, 128]),
    size=st.sampled_from([1, 3, 16]),
    gap=st.integers(0, 2),
    dtype=st.sampled_from(DTYPES),
    stored=st.sampled_from([*DTYPES, FLOAT8]),
)
def test_triton_is_the_reference(
    tokens: int, heads: tuple[int, int], dim: int, size: int, gap: int,
    dtype: torch.dtype, stored: torch.dtype,
) -> None:  # fmt: skip
    generator = np.random.default_rng(dim)
    num_heads, kv_heads = heads
    qkv = rows_of(random(generator, tokens, (num_heads + 2 * kv_heads) * dim, dtype=dtype), gap)
    blocks = 12
    slots = generator.permutation(blocks * size)[:tokens]
    slots[generator.random(tokens) < 0.3] = -1
    ours, theirs = both(
        rope_append, rope_append_reference, qkv, angles_of(50, dim),
        int32(generator.integers(0, 50, tokens + 2)), int32([*slots, 0, 0]),
        cache(blocks, size, kv_heads, dim, stored), cache(blocks, size, kv_heads, dim, stored),
        num_heads,
    )  # fmt: skip
    assert_close(ours[0], theirs[0], UNITS[dtype], FLOORS[dtype])
    turned = num_heads * dim
    assert_close(ours[0][:, turned:], qkv[:, turned:], 0)
    assert_close(ours[4], theirs[4], UNITS[stored], FLOORS[stored])
    assert_close(ours[5], theirs[5], 0)
    written = (ours[5].float() != -7).any(dim=(2, 3)).flatten().nonzero().flatten().tolist()
    assert written == sorted(slot for slot in slots.tolist() if slot >= 0)


@pytest.mark.parametrize("kernel", [rope_append, rope_append_reference])
def test_the_cache_may_be_a_part_of_a_larger_one(kernel: Any) -> None:
    """Keys beside values in each block, as some keep them."""
    qkv = random(np.random.default_rng(5), 2, 4 * 8, dtype=torch.float32)
    joined = torch.zeros(4, 2, 16, 1, 8, device=DEVICE)
    apart = torch.zeros(2, 4, 16, 1, 8, device=DEVICE)
    for keys, values in (joined.unbind(1), apart.unbind(0)):
        kernel(qkv.clone(), angles_of(9, 8), int32([3, 4]), int32([5, 49]), keys, values, 2)
    assert_close(joined.transpose(0, 1), apart, 0)
    assert joined[3, 1, 1, 0].tolist() == qkv[1, 24:].tolist()


@pytest.mark.parametrize("kernel", [rope_append, rope_append_reference])
def test_values_beyond_float8_are_clamped(kernel: Any) -> None:
    nan, inf = float("nan"), float("inf")
    numbers = [447.0, 464.0, 465.0, 1e9, -1e9, inf, -inf, nan]
    qkv = torch.tensor([[*([0.0] * 8), *numbers, *numbers]], device=DEVICE)
    keys, values = (cache(1, 1, 1, 8, FLOAT8) for _ in range(2))
    still = torch.tensor([[1.0] * 4 + [0.0] * 4], device=DEVICE)  # an angle of 0
    kernel(qkv, still, int32([0]), int32([0]), keys, values, 1)
    expected = [448.0, 448.0, 448.0, 448.0, -448.0, 448.0, -448.0]
    assert values.float().flatten().tolist()[:7] == expected
    assert values.float().flatten()[7].isnan()
    # Rotated by nothing, but infinity and NaN meet a factor of 0.
    assert keys.float().flatten().tolist()[0] == 448.0


@pytest.mark.parametrize("kernel", [rope_append, rope_append_reference])
def test_float8_is_in_units_of_the_scales(kernel: Any) -> None:
    qkv = random(np.random.default_rng(3), 3, 4 * 8, dtype=torch.float32) * 1000
    keys, values = (cache(2, 2, 1, 8, FLOAT8) for _ in range(2))
    still = torch.cat((torch.ones(5, 4), torch.zeros(5, 4)), dim=1).to(DEVICE)
    slots = int32([0, 1, 2])
    kernel(qkv.clone(), still, slots, slots, keys, values, 2, 8.0, 16.0)
    for stored, scale, first in ((keys, 8.0, 16), (values, 16.0, 24)):
        right = (qkv[:, first : first + 8] / scale).clamp(-448, 448).to(FLOAT8)
        assert_close(stored.view(4, 8)[:3], right, 0)


@pytest.mark.parametrize("kernel", [rope_append, rope_append_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_numbers_of_rust(dtype: torch.dtype, kernel: Any) -> None:
    tokens, heads, kv_heads, dim, size = 6, 4, 2, 24, 4
    qkv = random(np.random.default_rng(6), tokens, (heads + 2 * kv_heads) * dim, dtype=dtype)
    angles, positions = angles_of(9, dim), int32(np.arange(tokens) + 2)
    slots = int32([11, 2, 3, 4, 5, 6])
    keys, values = (cache(4, size, kv_heads, dim, dtype) for _ in range(2))
    their_keys, their_values = (
        torch.full((4, kv_heads, *page), -7.0, dtype=dtype) for page in ((dim, size), (size, dim))
    )
    # Every token is a row that sees itself alone, in the page that it is stored in; what it then
    # attends is not looked at here.
    header = np.zeros(len(step_numbers()), np.int64)
    header[[step_numbers()["num_rows"], step_numbers()["num_tokens"]]] = tokens
    step = CpuStep(
        header, positions.cpu().numpy(), slots.cpu().numpy(),
        np.arange(tokens + 1, dtype=np.int32), np.ones(tokens, np.int32),
        np.arange(tokens + 1, dtype=np.int32), slots.cpu().numpy() // size,
    )  # fmt: skip
    with run_once(CpuKernels(1), 0) as program:
        program.attend(
            step, cpu_tensor(qkv.cpu()), cpu_tensor(angles.cpu()),
            cpu_tensor(their_keys), cpu_tensor(their_values),
            cpu_tensor(torch.zeros(tokens, heads * dim, dtype=dtype)), heads, 1.0,
        )  # fmt: skip
    kernel(qkv, angles, positions, slots, keys, values, heads)
    assert_close(keys.cpu(), their_keys.permute(0, 3, 1, 2), UNITS[dtype], FLOORS[dtype])
    assert_close(values.cpu(), their_values.transpose(1, 2), 0)


@pytest.mark.parametrize("kernel", [rope_append, rope_append_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    good = {
        "qkv": torch.zeros(2, 32, device=DEVICE),
        "angles": angles_of(9, 8),
        "positions": int32([0, 0]),
        "slot_mapping": int32([0, 1]),
        "keys": cache(1, 4, 1, 8, torch.float32),
        "values": cache(1, 4, 1, 8, torch.float32),
        "num_heads": 2,
    }
    for wrong, message in (
        ({"num_heads": 3}, "3 heads"),
        ({"values": cache(1, 4, 1, 8, FLOAT8)}, "one type"),
        ({"qkv": torch.zeros(32, 2, device=DEVICE).T}, "one piece"),
        ({"angles": angles_of(9, 16)}, r"\[context, 8\]"),
        ({"slot_mapping": int32([0])}, "fewer"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(**good | wrong)

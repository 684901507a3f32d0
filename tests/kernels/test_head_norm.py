"""Normalization of heads in Triton, in torch and in Rust."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import CpuKernels
from pyengine.kernels.layers.head_norm import head_rms_norm, head_rms_norm_reference
from pyengine.kernels.layers.norm import add_rms_norm_reference
from pyengine.model.cpu.executor import run_once
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, cpu_tensor, random, rows_of

# As in test_norm: float32 differs by the order of the sum, and a narrow type by two roundings.
UNITS = {torch.float32: 16, torch.bfloat16: 2, torch.float16: 2}


@settings(max_examples=25, deadline=None)
@given(
    tokens=st.integers(0, 4),
    heads=st.integers(1, 40),
    kv_heads=st.integers(1, 5),
    dim=st.integers(1, 160),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    tokens: int, heads: int, kv_heads: int, dim: int, gap: int, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(dim)
    qkv = rows_of(random(generator, tokens, (heads + 2 * kv_heads) * dim, dtype=dtype), gap)
    query, key = (random(generator, dim, dtype=dtype) for _ in range(2))
    ours, theirs = both(head_rms_norm, head_rms_norm_reference, qkv, query, key, heads, 1e-6)
    assert_close(ours[0], theirs[0], UNITS[dtype])
    values = slice((heads + kv_heads) * dim, None)
    assert_close(ours[0][:, values], qkv[:, values], 0)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_each_head_is_a_row(dtype: torch.dtype) -> None:
    generator = np.random.default_rng(3)
    qkv = random(generator, 5, (6 + 2 * 2) * 24, dtype=dtype)
    query, key = (random(generator, 24, dtype=dtype) for _ in range(2))
    expected = qkv.clone().view(5, 10, 24)
    for head in range(8):
        rows = expected[:, head].clone()
        add_rms_norm_reference(rows, None, query if head < 6 else key, 1e-6, expected[:, head])
    head_rms_norm_reference(qkv, query, key, 6, 1e-6)
    assert_close(qkv.view(5, 10, 24), expected, 0)


@pytest.mark.parametrize("kernel", [head_rms_norm, head_rms_norm_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_numbers_of_rust(dtype: torch.dtype, kernel: Any) -> None:
    generator = np.random.default_rng(1)
    qkv = random(generator, 3, (9 + 2 * 3) * 64, dtype=dtype).cpu()
    query, key = (random(generator, 64, dtype=dtype).cpu() for _ in range(2))
    given = [t.to(DEVICE, copy=True) for t in (qkv, query, key)]
    kernel(*given, 9, 1e-6)
    with run_once(CpuKernels(1), 3) as program:
        program.head_rms_norm(cpu_tensor(qkv), cpu_tensor(query), cpu_tensor(key), 9 * 64, 1e-6)
    assert_close(given[0].cpu(), qkv, UNITS[dtype])


@pytest.mark.parametrize("kernel", [head_rms_norm, head_rms_norm_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    qkv, weight = torch.zeros(2, 10 * 8, device=DEVICE), torch.zeros(8, device=DEVICE)
    for arguments, message in (
        ((qkv, weight, weight[:4], 6), r"\[head_dim\] both"),
        ((qkv, weight.half(), weight, 6), "must be torch.float32"),
        ((qkv, weight, weight, 5), "not 5 query heads of 8"),
        ((qkv, weight, weight, 12), "not 12 query heads of 8"),
        ((qkv[:, :78], weight, weight, 6), "rows of 78"),
        ((qkv.T, weight, weight, 6), "rows in one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*arguments, 1e-6)


def test_rust_checks_its_arguments() -> None:
    kernels = CpuKernels(1)
    qkv, weight = torch.zeros(2, 10 * 8), torch.zeros(8)

    def call(width: int, rows: int, key: torch.Tensor = weight, dim: int = 8) -> None:
        query = cpu_tensor(weight[:dim])
        with run_once(kernels, rows) as program:
            program.head_rms_norm(cpu_tensor(qkv), query, cpu_tensor(key), width, 1e-6)

    for arguments, message in (
        ((44, 2), "not 44 of queries by 8"),
        ((88, 2), "not 88 of queries by 8"),
        ((47, 2), "not 47 of queries by 8"),
        ((48, 3), "qkv has 160 elements, needs 240"),
        ((48, 2, weight[:5]), "then keys by 5"),
        ((48, 2, weight.int()), "key_weight must be Float32"),
        ((48, 2, qkv[0][:8]), "overlaps"),
        ((48, 2, weight, 0), "rows of 80 are not"),
    ):
        with pytest.raises(ValueError, match=message):
            call(*arguments)
    call(48, 2)

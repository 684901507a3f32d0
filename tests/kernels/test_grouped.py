"""Products by group in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.grouped import grouped, grouped_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import assert_close, random, rows_of

# Triton's interpreter takes the bits of bfloat16 for integers where it multiplies.
MULTIPLIED = (torch.float32, torch.float16)


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20) | st.just(130), min_size=1, max_size=5),
    behind=st.integers(0, 3),
    inputs=st.integers(1, 100),
    width=st.integers(1, 100),
    gap=st.integers(0, 3),
    biased=st.booleans(),
    dtype=st.sampled_from(MULTIPLIED),
)
def test_triton_is_the_reference(
    counts: list[int],
    behind: int,
    inputs: int,
    width: int,
    gap: int,
    biased: bool,
    dtype: torch.dtype,
) -> None:
    generator = np.random.default_rng(inputs)
    rows = sum(counts) + behind
    x = rows_of(random(generator, rows, inputs, dtype=dtype), gap)
    weight = random(generator, len(counts), width, inputs, dtype=dtype)
    bias = random(generator, len(counts), width, dtype=dtype) if biased else None
    ends = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=DEVICE)
    ours, theirs = (torch.full((rows, width), 7.0, dtype=dtype, device=DEVICE) for _ in range(2))
    grouped(x, weight, bias, ends, ours)
    grouped_reference(x, weight, bias, ends, theirs)
    torch.testing.assert_close(
        ours.float(), theirs.float(), rtol=2e-2 if dtype != torch.float32 else 1e-5,
        atol=5e-2 if dtype != torch.float32 else 1e-4,
    )  # fmt: skip
    assert_close(ours[sum(counts) :], theirs[sum(counts) :], 0)


@pytest.mark.parametrize("kernel", [grouped, grouped_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    x, weight, out = torch.zeros(4, 8), torch.zeros(2, 6, 8), torch.zeros(4, 6)
    ends, bias = torch.zeros(2, dtype=torch.int32), torch.zeros(2, 6)
    for arguments, message in (
        ((x, weight[0], bias, ends, out), "do not fit"),
        ((x, weight, bias, ends, out[:3]), "out \\[3, 6\\]"),
        ((x, weight, bias, ends.long(), out), "ends torch.int64"),
        ((x, weight, bias[:, :5], ends, out), "bias \\[2, 5\\]"),
        ((x, weight.half(), bias, ends, out), "must be torch.float32"),
        ((x, weight.transpose(1, 2).contiguous().transpose(1, 2), bias, ends, out), "one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*(each.to(DEVICE) for each in arguments))

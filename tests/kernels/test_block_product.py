"""Products of 8-bit floats with scales for steps of inputs, in Triton and in torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.block_product import block_product, block_product_reference
from pyengine.kernels.layers.quantize import (
    FLOAT8,
    quantize_groups,
    quantize_groups_reference,
)
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, random, rows_of


@settings(max_examples=20, deadline=None)
@given(
    rows=st.sampled_from([1, 3, 16, 17, 64, 65, 130]),
    width=st.integers(1, 140),
    inputs=st.integers(1, 300),
    step=st.sampled_from([32, 64, 128]),
    dtype=st.sampled_from(DTYPES),
    biased=st.booleans(),
    gap=st.integers(0, 3),
)
def test_triton_is_the_reference(
    rows: int, width: int, inputs: int, step: int, dtype: torch.dtype, biased: bool, gap: int
) -> None:
    generator = np.random.default_rng(rows + width * inputs)
    steps = -(-inputs // step)
    x, weight = (
        random(generator, count, inputs, dtype=torch.float32).to(FLOAT8) for count in (rows, width)
    )
    x_scales, scales = (
        random(generator, steps, count, dtype=torch.float32).abs() for count in (rows, width)
    )
    bias = random(generator, width, dtype=dtype) if biased else None
    out = rows_of(torch.zeros(rows, width, dtype=dtype, device=DEVICE), gap)
    given_ = x, rows_of(x_scales, gap), weight, scales, bias, step, out
    ours, theirs = both(block_product, block_product_reference, *given_)
    floor = 1e-5 * float(theirs[-1].float().abs().max())
    assert_close(ours[-1], theirs[-1], 8 if dtype == torch.float32 else 1, floor)


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 4),
    width=st.integers(1, 5000),
    group=st.sampled_from([32, 64, 128]),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    bound=st.sampled_from([math.inf, 5.0]),
)
def test_groups_of_a_row_have_scales_of_their_own(
    rows: int, width: int, group: int, gap: int, dtype: torch.dtype, bound: float
) -> None:
    numbers = random(np.random.default_rng(width), rows, width, dtype=dtype)
    numbers *= torch.arange(width, device=DEVICE) // group + 1
    x, groups = rows_of(numbers, gap), -(-width // group)
    if rows > 1:
        x[1] = 0
    made = []
    for kernel in (quantize_groups, quantize_groups_reference):
        out = torch.zeros(rows, width, device=DEVICE).to(FLOAT8)
        scales = torch.full((groups, rows + gap), -1.0, device=DEVICE)
        kernel(x, out, scales[:, :rows], group, bound)
        assert (scales[:, rows:] == -1).all()
        by_number = scales[:, :rows].t().repeat_interleave(group, dim=1)[:, :width]
        # A float of 4 bits of mantissa, the hidden one counted in.
        error = (out.float() * by_number - x.float().clamp(-bound, bound)).abs()
        assert (error <= x.float().abs() / 16 + by_number * 2.0**-9).all()
        made.append((out.float(), scales))
    (ours, our_scales), (theirs, their_scales) = made
    assert torch.equal(our_scales, their_scales)
    # A quotient in the middle between two may be rounded to either by a narrowing in two steps.
    assert (ours != theirs).sum() <= ours.numel() // 50


def test_wrong_shapes_are_refused() -> None:
    x = torch.zeros(2, 64, device=DEVICE)
    small, scales = x.to(FLOAT8), torch.zeros(2, 2, device=DEVICE)
    out = torch.zeros(2, 2, device=DEVICE)
    for product in (block_product, block_product_reference):
        with pytest.raises(ValueError, match="scales"):
            product(small, scales, small, scales[:1], None, 32, out)
        with pytest.raises(ValueError, match="power of two"):
            product(small, scales[:1].expand(4, 2), small, scales[:1].expand(4, 2), None, 16, out)
        with pytest.raises(ValueError, match="float8"):
            product(x, scales, small, scales, None, 32, out)
    for quantize in (quantize_groups, quantize_groups_reference):
        with pytest.raises(ValueError, match="by 32"):
            quantize(x, small, scales[:1], 32)
        with pytest.raises(ValueError, match="float8"):
            quantize(x, x, scales, 32)

"""Rows as floats of 8 bits, in Triton and in torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.quantize import (
    FLOAT8,
    quantize_rows,
    quantize_rows_reference,
)
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, random, rows_of


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 4),
    width=st.integers(1, 2500),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    bound=st.sampled_from([math.inf, 5.0]),
)
def test_triton_is_the_reference(
    rows: int, width: int, gap: int, dtype: torch.dtype, bound: float
) -> None:
    numbers = random(np.random.default_rng(width), rows, width, dtype=dtype) * 4
    x = rows_of(numbers, gap)
    if rows > 1:
        x[1] = 0
    made = []
    for kernel in (quantize_rows, quantize_rows_reference):
        out = torch.zeros(rows, width, device=DEVICE).to(FLOAT8)
        scales = torch.zeros(rows, 1, device=DEVICE)
        kernel(x, out, scales, bound)
        made.append((out.float(), scales))
        # A float of 4 bits of mantissa, the hidden one counted in.
        error = (out.float() * scales - x.float().clamp(-bound, bound)).abs()
        assert (error <= x.float().abs() / 16 + scales * 2.0**-9).all()
    (ours, our_scales), (theirs, their_scales) = made
    assert torch.equal(our_scales, their_scales)
    # A quotient in the middle between two may be rounded to either by a narrowing in two steps.
    assert (ours != theirs).sum() <= ours.numel() // 50


def test_wrong_shapes_are_refused() -> None:
    x = torch.zeros(2, 4, device=DEVICE)
    scales = torch.zeros(2, 1, device=DEVICE)
    for kernel in (quantize_rows, quantize_rows_reference):
        with pytest.raises(ValueError, match="scales"):
            kernel(x, x.to(FLOAT8), scales[:1])
        with pytest.raises(ValueError, match="float8"):
            kernel(x, x, scales)

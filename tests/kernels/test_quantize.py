"""Rows as floats of 8 bits, in Triton and in torch."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.quantize import (
    FLOAT8,
    quantize_by,
    quantize_by_reference,
    quantize_rows,
    quantize_rows_reference,
)
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, both, random, rows_of


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


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 4),
    width=st.integers(1, 2500),
    gap=st.integers(0, 3),
    scale=st.sampled_from([2.0**-10, 0.0123, 1.0, 300.0]),
    dtype=st.sampled_from(DTYPES),
)
def test_a_scale_that_is_given_is_kept(
    rows: int, width: int, gap: int, scale: float, dtype: torch.dtype
) -> None:
    x = random(np.random.default_rng(width), rows, width, dtype=torch.float32) * 200 * scale
    x = rows_of(x.to(dtype), gap)
    out = torch.zeros(rows, width, device=DEVICE).to(FLOAT8)
    ours, theirs = both(quantize_by, quantize_by_reference, x, scale, out)
    most = 448 * scale
    meant = x.float().clamp(-most, most)
    for made in (ours[-1], theirs[-1]):
        # A float of 4 bits of mantissa, the hidden one counted in; float16 has less room.
        error = (made.float() * scale - meant).abs()
        assert (error <= meant.abs() / 16 * 1.001 + scale * 2.0**-9)[meant.isfinite()].all()
    assert (ours[-1].float() != theirs[-1].float()).sum() <= out.numel() // 50
    # Beyond its largest number it is that.
    beyond = x.float().abs() > most
    assert (ours[-1].float().abs()[beyond] == 448).all()


def test_what_does_not_fit_is_refused() -> None:
    x = torch.zeros(2, 4, device=DEVICE)
    scales = torch.zeros(2, 1, device=DEVICE)
    for kernel in (quantize_rows, quantize_rows_reference):
        with pytest.raises(ValueError, match="scales"):
            kernel(x, x.to(FLOAT8), scales[:1])
        with pytest.raises(ValueError, match="float8"):
            kernel(x, x, scales)
    for by in (quantize_by, quantize_by_reference):
        with pytest.raises(ValueError, match=r"out \[1, 4\]"):
            by(x, 1.0, x[:1].to(FLOAT8))
        with pytest.raises(ValueError, match="float8"):
            by(x, 1.0, x)

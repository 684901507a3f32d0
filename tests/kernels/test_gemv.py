"""Products with few rows in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.gemv import gemv, gemv_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, random, rows_of

# One rounding to the type; in float32 the sum of n products of any order, some of which cancel.
UNITS = {torch.float32: 64, torch.bfloat16: 1, torch.float16: 1}


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 8),
    num_in=st.one_of(st.integers(0, 40), st.integers(500, 2500)),
    num_out=st.integers(0, 11),
    gap=st.integers(0, 2),
    biased=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    rows: int, num_in: int, num_out: int, gap: int, biased: bool, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(num_in)
    x = rows_of(random(generator, rows, num_in, dtype=dtype), gap)
    weight = rows_of(random(generator, num_out, num_in, dtype=dtype), 2 * gap)
    bias = random(generator, num_out, dtype=dtype) if biased else None
    out = rows_of(torch.zeros(rows, num_out, dtype=dtype, device=DEVICE), gap)
    ours, theirs = both(gemv, gemv_reference, x, weight, out, bias)
    assert_close(ours[2], theirs[2], UNITS[dtype], 2e-5)


@pytest.mark.parametrize("kernel", [gemv, gemv_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    x, weight = torch.zeros(2, 8, device=DEVICE), torch.zeros(4, 8, device=DEVICE)
    out = torch.zeros(2, 4, device=DEVICE)
    for arguments, message in (
        ((x, weight, out.T), r"out \[4, 2\]"),
        ((torch.zeros(9, 8, device=DEVICE), weight, torch.zeros(9, 4, device=DEVICE)), "9 rows"),
        ((x, weight, out, out[0, :3]), "bias"),
        ((x, torch.zeros(8, 4, device=DEVICE).T, out), "in one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*arguments)

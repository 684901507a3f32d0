"""Products with quantized weights by group, in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.grouped_packed import grouped_packed, grouped_packed_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import assert_close, random, rows_of
from tests.kernels.test_grouped import MULTIPLIED
from tests.kernels.test_packed_product import KINDS, drawn


@settings(max_examples=10, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20) | st.just(130), min_size=1, max_size=5),
    behind=st.integers(0, 3),
    groups=st.integers(1, 4),
    group=st.sampled_from([16, 32, 64, 128, 0]),
    width=st.integers(1, 70) | st.just(140),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(KINDS),
    gap=st.integers(0, 3),
    biased=st.booleans(),
    dtype=st.sampled_from(MULTIPLIED),
)
def test_triton_is_the_reference(
    counts: list[int], behind: int, groups: int, group: int, width: int, bits: int, kind: str,
    gap: int, biased: bool, dtype: torch.dtype,
) -> None:  # fmt: skip
    inputs, rows = groups * (group or 38), sum(counts) + behind
    layers = (len(counts),)
    weight = drawn(rows + width, bits, group or inputs, width, inputs, kind, dtype, layers)
    generator = np.random.default_rng(inputs)
    x = rows_of(random(generator, rows, inputs, dtype=dtype), gap)
    bias = random(generator, len(counts), width, dtype=dtype) if biased else None
    ends = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=DEVICE)
    made = []
    for product in (grouped_packed, grouped_packed_reference):
        out = rows_of(torch.full((rows, width), 7.0, dtype=dtype, device=DEVICE), gap)
        product(x, weight, bias, ends, out)
        made.append(out)
    ours, theirs = made
    floor = 1e-5 * float(theirs.float().abs().max()) if rows else 0.0
    assert_close(ours, theirs, 8 if dtype == torch.float32 else 1, floor)
    # Rows behind the last group stay as they were.
    assert (ours[sum(counts) :] == 7).all()


@pytest.mark.parametrize("product", [grouped_packed, grouped_packed_reference])
def test_arguments_are_checked(product: Any) -> None:
    x, out = torch.zeros(4, 64, device=DEVICE), torch.zeros(4, 6, device=DEVICE)
    ends = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    bias = torch.zeros(2, 6, device=DEVICE)
    weight = drawn(0, 4, 32, 6, 64, "powers", torch.float32, (2,))
    for arguments, message in (
        ((x, weight.layer(0), bias, ends, out), "do not fit"),
        ((x[:, :32], weight, bias, ends, out), "do not fit"),
        ((x, weight, bias, ends, out[:3]), "out \\[3, 6\\]"),
        ((x, weight, bias, ends.long(), out), "ends torch.int64"),
        ((x, weight, bias[:, :5], ends, out), "bias \\[2, 5\\]"),
        ((x.half(), weight, bias, ends, out), "must be torch.float16"),
    ):
        with pytest.raises(ValueError, match=message):
            product(*arguments)

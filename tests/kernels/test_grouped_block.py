"""Products of 8-bit floats by group, in Triton and in torch."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.block_product import block_product
from pyengine.kernels.layers.grouped_block import grouped_block, grouped_block_reference
from pyengine.kernels.layers.quantize import FLOAT8
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, random, rows_of
from tests.kernels.test_packed_product import drawn


@settings(max_examples=12, deadline=None)
@given(
    counts=st.lists(st.integers(0, 20) | st.just(130), min_size=1, max_size=5),
    behind=st.integers(0, 3),
    inputs=st.integers(1, 300),
    width=st.integers(1, 70) | st.just(140),
    step=st.sampled_from([32, 64, 128]),
    gap=st.integers(0, 3),
    biased=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference_and_each_group_the_product_of_a_layer(
    counts: list[int], behind: int, inputs: int, width: int, step: int, gap: int, biased: bool,
    dtype: torch.dtype,
) -> None:  # fmt: skip
    rows, groups = sum(counts) + behind, len(counts)
    weight = drawn(rows + width, 8, step, width, inputs, "floats", torch.float32, (groups,))
    generator = np.random.default_rng(inputs)
    x = rows_of(random(generator, rows, inputs, dtype=torch.float32), gap).to(FLOAT8)
    x_scales = rows_of(random(generator, -(-inputs // step), rows, dtype=torch.float32).abs(), gap)
    bias = random(generator, groups, width, dtype=dtype) if biased else None
    ends = torch.tensor(np.cumsum(counts), dtype=torch.int32, device=DEVICE)
    made = []
    for product in (grouped_block, grouped_block_reference):
        out = rows_of(torch.full((rows, width), 7.0, dtype=dtype, device=DEVICE), gap)
        product(x, x_scales, weight, bias, ends, out)
        made.append(out)
    ours, theirs = made
    units = 8 if dtype == torch.float32 else 1
    floor = 1e-5 * float(theirs.float().abs().max()) if rows else 0.0
    assert_close(ours, theirs, units, floor)
    # Rows behind the last group stay as they were.
    assert (ours[sum(counts) :] == 7).all()
    start = 0
    for group, count in enumerate(counts):
        mine, of_group = slice(start, start + count), weight.layer(group)
        alone = torch.zeros(count, width, dtype=dtype, device=DEVICE)
        of_layer = None if bias is None else bias[group]
        block_product(
            x[mine], x_scales[:, mine], of_group.values, of_group.scales, of_layer, step, alone
        )
        assert_close(ours[mine], alone, units, floor)
        start += count


@pytest.mark.parametrize("product", [grouped_block, grouped_block_reference])
def test_arguments_are_checked(product: Any) -> None:
    x, out = torch.zeros(4, 64, device=DEVICE).to(FLOAT8), torch.zeros(4, 6, device=DEVICE)
    ends, scales = torch.zeros(2, dtype=torch.int32), torch.ones(2, 4, device=DEVICE)
    ends, bias = ends.to(DEVICE), torch.zeros(2, 6, device=DEVICE)
    weight = drawn(0, 8, 32, 6, 64, "floats", torch.float32, (2,))
    narrow = replace(weight, scales=weight.scales.half())
    sixteen = drawn(0, 8, 16, 6, 64, "floats", torch.float32, (2,))
    integers = drawn(0, 8, 32, 6, 64, "symmetric", torch.float32, (2,))
    for arguments, message in (
        ((x, scales, weight.layer(0), bias, ends, out), "do not fit"),
        ((x, scales, weight, bias, ends, out[:3]), "out \\[3, 6\\]"),
        ((x, scales, weight, bias.half(), ends, out), "bias must be torch.float32"),
        ((x.half(), scales, weight, bias, ends, out), "must be torch.float8"),
        ((x, scales, integers, bias, ends, out), "must be torch.float8"),
        ((x, scales, sixteen, bias, ends, out), "a step of 16 inputs"),
        ((x, scales[:1], weight, bias, ends, out), "scales \\[1, 4\\] by 32 inputs"),
        ((x, scales, narrow, bias, ends, out), "scales must be float32"),
        ((x, scales.t().contiguous().t(), weight, bias, ends, out), "must be in one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            product(*arguments)

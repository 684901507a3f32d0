"""Rows of quantized tables, in Triton and in torch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.packed_rows import packed_rows, packed_rows_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, rows_of
from tests.kernels.test_packed_product import KINDS, drawn


@settings(max_examples=25, deadline=None)
@given(
    rows=st.sampled_from([0, 1, 8, 9, 20]),
    width=st.integers(1, 50),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 64, 128, 384, 0]),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    scales=st.sampled_from(DTYPES),
    of_index=st.sampled_from([torch.int32, torch.int64]),
    gap=st.integers(0, 3),
)
def test_rows_equal_the_tables_to_the_bit(
    rows: int, width: int, groups: int, group: int, bits: int, kind: str, dtype: torch.dtype,
    scales: torch.dtype, of_index: torch.dtype, gap: int,
) -> None:  # fmt: skip
    inputs = groups * (group or 38)
    weight = drawn(rows + width, bits, group or inputs, width, inputs, kind, scales)
    index = torch.from_numpy(np.random.default_rng(rows).integers(0, width, rows))
    index = index.to(DEVICE, of_index)
    out = rows_of(torch.zeros(rows, inputs, dtype=dtype, device=DEVICE), gap)
    ours, theirs = both(packed_rows, packed_rows_reference, weight, index, out)
    expected = weight.dequantized(dtype)[index.long()]
    assert_close(theirs[-1], expected, 0)
    assert_close(ours[-1], expected, 0)


def test_the_last_group_of_8_bit_floats_may_be_cut_short() -> None:
    weight = drawn(0, 8, 128, 20, 200, "floats", torch.float32)
    index = torch.tensor([3, 19, 0], device=DEVICE)
    out = torch.zeros(3, 200, device=DEVICE)
    packed_rows(weight, index, out)
    assert_close(out, weight.dequantized(torch.float32)[index], 0)


def test_number_that_is_no_row_is_not_read() -> None:
    weight = drawn(0, 4, 32, 20, 64, "symmetric", torch.float32)
    index = torch.tensor([-1, 20, 5, 2**31 - 1, -(2**31)], dtype=torch.int32, device=DEVICE)
    out = torch.full((5, 64), 7.0, device=DEVICE)
    packed_rows(weight, index, out)
    expected = torch.zeros_like(out)
    expected[2] = weight.dequantized(torch.float32)[5]
    assert_close(out, expected, 0)


def test_wrong_shapes_are_refused() -> None:
    index, out = torch.zeros(2, dtype=torch.int32, device=DEVICE), torch.zeros(2, 96, device=DEVICE)
    weight = drawn(0, 8, 32, 4, 96, "symmetric", torch.float32)
    for rows in (packed_rows, packed_rows_reference):
        with pytest.raises(ValueError, match="out \\[1, 96\\]"):
            rows(weight, index, out[:1])
        with pytest.raises(ValueError, match="table \\[2, 4, 96\\]"):
            rows(drawn(0, 8, 32, 4, 96, "symmetric", torch.float32, (2,)), index, out)
        with pytest.raises(ValueError, match="int32 or int64"):
            rows(weight, index.to(torch.int16), out)
        with pytest.raises(ValueError, match="int32 or int64, in one piece"):
            rows(weight, index.repeat(2)[::2], out)
        with pytest.raises(ValueError, match="each row of out"):
            rows(weight, index, out.t().contiguous().t())

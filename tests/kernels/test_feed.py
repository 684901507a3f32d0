"""Tokens that only the device knows."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import step_numbers
from pyengine.kernels.feed import BLOCK, feed, feed_reference
from tests.kernels.backends import DEVICE


@pytest.mark.parametrize("kernel", [feed, feed_reference])
@settings(max_examples=15, deadline=None)
@given(data=st.data(), rows=st.integers(0, 2 * BLOCK), spare=st.integers(0, 40))
def test_tokens_come_where_they_are_fed(
    data: st.DataObject, rows: int, spare: int, kernel: object
) -> None:
    count = data.draw(st.integers(0, rows))
    order = torch.randperm(rows + spare, generator=torch.Generator().manual_seed(count))
    header = torch.zeros(len(step_numbers()), dtype=torch.int64)
    header[step_numbers()["num_feeds"]] = count
    feed_token = order[:rows].int()
    feed_sequence = (order[:rows] * 7 % (rows + 3)).int()
    last_token = torch.arange(rows + 3, dtype=torch.int32) + 1000
    token_ids = torch.full((rows + spare,), -5, dtype=torch.int32)
    expected = token_ids.tolist()
    for i in range(count):
        expected[int(feed_token[i])] = int(last_token[feed_sequence[i]])
    given = [header, token_ids, feed_token, feed_sequence, last_token]
    on_device = [tensor.to(DEVICE, copy=True) for tensor in given]
    kernel(*on_device)  # type: ignore[operator]
    assert on_device[1].tolist() == expected

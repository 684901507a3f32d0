"""Drafts of a pass that become tokens of the step."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.hand_over import (
    BLOCK,
    hand_over,
    hand_over_reference,
    take_tokens,
    take_tokens_reference,
)
from tests.kernels.backends import DEVICE


@pytest.mark.parametrize("kernel", [hand_over, hand_over_reference])
@settings(max_examples=15, deadline=None)
@given(drafts=st.integers(0, BLOCK + 9), spare=st.integers(0, 40), seed=st.integers(0, 99))
def test_drafts_come_where_they_belong(drafts: int, spare: int, seed: int, kernel: object) -> None:
    """And tokens that the model does not know, or none, become 0."""
    generator = torch.Generator().manual_seed(seed)
    sequence = torch.randperm(drafts + spare, generator=generator)[:drafts].int()
    places = torch.randperm(drafts + spare, generator=generator)[:drafts]
    last = torch.randint(-1, 12, (drafts + spare,), generator=generator).int()
    token_ids = torch.full((drafts + spare,), -5, dtype=torch.int32)
    wanted, kept = token_ids.tolist(), last.tolist()
    for slot, place in zip(sequence.tolist(), places.tolist(), strict=True):
        kept[slot] = wanted[place] = kept[slot] if 0 <= kept[slot] < 10 else 0
    given = [tensor.to(DEVICE, copy=True) for tensor in (last, sequence, places, token_ids)]
    kernel(*given, 10)  # type: ignore[operator]
    assert given[0].tolist() == kept
    assert given[3].tolist() == wanted


@pytest.mark.parametrize("kernel", [take_tokens, take_tokens_reference])
@pytest.mark.parametrize("count", [1, 7, BLOCK, BLOCK + 9])
def test_tokens_that_only_one_model_has_are_none(count: int, kernel: object) -> None:
    source = (torch.arange(count) % 14 - 2).int()
    wanted = [token if 0 <= token < 10 else 0 for token in source.tolist()]
    out = torch.full((count + 3,), -5, dtype=torch.int32, device=DEVICE)
    kernel(source.to(DEVICE), out[:count], 10)  # type: ignore[operator]
    assert out.tolist() == [*wanted, -5, -5, -5]

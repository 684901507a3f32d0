"""Sparse penalties of logits in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.sampling.penalties import (
    BLOCK,
    PARTS,
    apply_penalties,
    apply_penalties_reference,
    restore,
    restore_reference,
)
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, random, rows_of

KERNELS = pytest.mark.parametrize(
    ("applying", "restoring"),
    [(apply_penalties, restore), (apply_penalties_reference, restore_reference)],
)


def penalties(
    generator: np.random.Generator, counts: list[int], vocabulary: int
) -> tuple[torch.Tensor, ...]:
    """So many penalties for each logits row, each token once; every value is an interesting one."""
    total = sum(counts)
    tokens = [generator.permutation(vocabulary + 2)[:count] - 1 for count in counts]
    arrays = (
        np.cumsum([0, *counts]).astype(np.int32),
        np.concatenate([*tokens, np.zeros(3)]).astype(np.int32),
        generator.choice([1.0, 1.3, 0.7, 2.0], total + 3).astype(np.float32),
        generator.choice([0.0, -1.7, 100.0, -np.inf], total + 3).astype(np.float32),
    )
    return tuple(torch.from_numpy(array).to(DEVICE) for array in arrays)


@settings(max_examples=25, deadline=None)
@given(
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=6),
    data=st.data(),
    vocabulary=st.integers(50, 90),
    gap=st.integers(0, 2),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    counts: list[int], data: st.DataObject, vocabulary: int, gap: int, dtype: torch.dtype
) -> None:
    first = data.draw(st.integers(0, len(counts)))
    rows = data.draw(st.integers(0, len(counts) - first))
    generator = np.random.default_rng(sum(counts))
    logits = rows_of(random(generator, rows, vocabulary, dtype=dtype), gap)
    given = penalties(generator, counts, vocabulary)
    before = torch.zeros_like(given[2])
    ours, theirs = both(apply_penalties, apply_penalties_reference, logits, *given, first, before)
    assert_close(ours[0], theirs[0], 0)
    assert_close(ours[6], theirs[6], 0)
    restore(ours[0], given[0], given[1], ours[6], first)
    restore_reference(theirs[0], given[0], given[1], theirs[6], first)
    assert_close(ours[0], logits, 0)
    assert_close(theirs[0], logits, 0)


@KERNELS
def test_more_penalties_than_the_programs_do_at_a_time(applying: Any, restoring: Any) -> None:
    count = PARTS * BLOCK + BLOCK + 7
    logits = torch.zeros(1, count + 5, device=DEVICE)
    start = torch.tensor([0, count], dtype=torch.int32, device=DEVICE)
    token = torch.arange(count, dtype=torch.int32, device=DEVICE)
    ones = torch.ones(count, device=DEVICE)
    applying(logits, start, token, ones, token + 1.0)
    assert logits[0].tolist() == [*range(1, count + 1), *[0] * 5]


@KERNELS
def test_by_hand(applying: Any, restoring: Any) -> None:
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor([[3.0, -3.0, 0.0, inf, nan, 5.0], [1.0] * 6], device=DEVICE)
    start = torch.tensor([9, 0, 5, 5], dtype=torch.int32, device=DEVICE)
    token = torch.tensor([0, 1, 2, 3, 4], dtype=torch.int32, device=DEVICE)
    factor = torch.tensor([1.5, 1.5, 1.5, 2.0, 2.0], device=DEVICE)
    add = torch.tensor([0.25, 0.0, -1.0, 1.0, 1.0], device=DEVICE)
    before = torch.zeros(5, device=DEVICE)
    penalized = logits.clone()
    applying(penalized, start, token, factor, add, 1, before)
    expected = torch.tensor([[2.25, -4.5, -1.0, inf, nan, 5.0], [1.0] * 6])
    torch.testing.assert_close(penalized.cpu(), expected, rtol=0, atol=0, equal_nan=True)
    restoring(penalized, start, token, before, 1)
    torch.testing.assert_close(penalized, logits, rtol=0, atol=0, equal_nan=True)
    with pytest.raises(ValueError, match="one piece"):
        applying(logits.T, start, token, factor, add)

"""The experts of tokens in Triton and in torch; the Rust kernel is held to torch's in
tests/model/test_routing.py.
"""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.router import route, route_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, random, rows_of


def empty(rows: int, count: int, chosen: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Experts, weights, and how many rows chose each so far."""
    return (
        torch.full((rows, chosen), -1, dtype=torch.int32, device=DEVICE),
        torch.full((rows, chosen), -1.0, device=DEVICE),
        torch.ones(count, dtype=torch.int64, device=DEVICE),
    )


@settings(max_examples=20, deadline=None)
@given(
    rows=st.integers(0, 6),
    groups=st.integers(1, 4),
    width=st.integers(2, 9),
    draw=st.data(),
    sigmoid=st.booleans(),
    normalized=st.booleans(),
    biased=st.booleans(),
    scaled=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    rows: int,
    groups: int,
    width: int,
    draw: st.DataObject,
    sigmoid: bool,
    normalized: bool,
    biased: bool,
    scaled: bool,
    dtype: torch.dtype,
) -> None:
    count = groups * width
    chosen_groups = draw.draw(st.integers(1, groups))
    chosen = draw.draw(st.integers(1, chosen_groups * width))
    live = torch.tensor([draw.draw(st.integers(0, rows))], device=DEVICE)
    generator = np.random.default_rng(count)
    # Different logits, also rounded: of equal ones any may be chosen.
    order = np.stack([generator.permutation(count) for _ in range(rows)]) if rows else None
    spread = np.zeros((0, count)) if order is None else order / 8 - 2
    logits = rows_of(torch.from_numpy(spread).to(DEVICE, dtype), 2)
    bias = random(generator, count, dtype=torch.float32) if biased else None
    scales = random(generator, count, dtype=torch.float32) if scaled else None
    rules: dict[str, Any] = {
        "sigmoid": sigmoid, "normalized": normalized, "scale": 1.5, "groups": groups,
        "chosen_groups": chosen_groups, "group_best": draw.draw(st.integers(1, min(2, width))),
        "bias": bias, "scales": scales,
    }  # fmt: skip
    ours, theirs = empty(rows, count, chosen), empty(rows, count, chosen)
    route(logits, *ours, live, **rules)
    route_reference(logits, *theirs, live, **rules)
    assert ours[0].equal(theirs[0])
    torch.testing.assert_close(ours[1], theirs[1], rtol=1e-5, atol=1e-6)
    assert ours[2].equal(theirs[2])
    assert int(ours[2].sum()) == count + int(live) * chosen


def test_rows_without_numbers_choose_experts_that_there_are() -> None:
    logits = torch.full((2, 6), float("nan"), device=DEVICE)
    experts, weights, routed = empty(2, 6, 3)
    route(logits, experts, weights, routed, torch.tensor([2], device=DEVICE), groups=3)
    assert all(len({*row}) == 3 for row in experts.tolist())
    assert 0 <= int(experts.min()) <= int(experts.max()) < 6
    assert weights.isnan().all()


@pytest.mark.parametrize("kernel", [route, route_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    logits, live = torch.zeros(2, 4), torch.ones(1, dtype=torch.int64)
    experts, weights = torch.zeros(2, 3, dtype=torch.int32), torch.zeros(2, 3)
    routed = torch.zeros(4, dtype=torch.int64)
    for arguments, message in (
        ((logits[:1], experts, weights, routed, live), "do not fit"),
        ((logits[:, :2], experts, weights, routed, live), "3 of 2 experts"),
        ((logits, experts.long(), weights, routed, live), "experts must be int32"),
        ((logits, experts, weights, routed.int(), live), "routed must be int64"),
        ((logits.T.contiguous().T, experts, weights, routed, live), "one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*(each.to(DEVICE) for each in arguments))

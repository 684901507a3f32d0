"""The most likely tokens in Triton and in torch."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.sampling import top_logprobs as module
from pyengine.kernels.sampling.top_logprobs import top_logprobs, top_logprobs_reference
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, both, rows_of

KERNELS = pytest.mark.parametrize("kernel", [top_logprobs, top_logprobs_reference])


def outputs(rows: int, wanted: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (
        torch.full((rows, wanted), -7, dtype=torch.int32, device=DEVICE),
        torch.zeros(rows, wanted, device=DEVICE),
        torch.zeros(rows, device=DEVICE),
    )


@settings(max_examples=30, deadline=None)
@given(
    rows=st.integers(0, 3),
    vocabulary=st.one_of(st.integers(1, 40), st.integers(4000, 7000)),
    wanted=st.integers(0, 12),
    seed=st.integers(0, 99),
    gap=st.integers(0, 2),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    rows: int, vocabulary: int, wanted: int, seed: int, gap: int, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(seed)
    # Few values, so that there are equals, and some rows without a request.
    values = np.round(generator.normal(0, 3, (rows, vocabulary)), seed % 3)
    values[generator.random(values.shape) < 0.1] = generator.choice([-np.inf, np.nan, -0.0, 0.0])
    logits = rows_of(torch.from_numpy(values).to(DEVICE, dtype), gap)
    chosen = torch.from_numpy(generator.integers(-1, vocabulary, rows).astype(np.int32)).to(DEVICE)
    ours, theirs = both(
        top_logprobs, top_logprobs_reference, logits, chosen, *outputs(rows, wanted)
    )
    assert ours[2].tolist() == theirs[2].tolist()
    # The reference adds up in float64, the kernel thousands of numbers in float32.
    torch.testing.assert_close(ours[3], theirs[3], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(ours[4], theirs[4], rtol=1e-5, atol=1e-5)


@KERNELS
def test_by_hand(kernel: Any) -> None:
    inf, nan = float("inf"), float("nan")
    logits = torch.tensor(
        [
            [0.0, np.log(2), -0.0, nan, -inf],
            [inf, 5.0, nan, inf, -inf],
            [-inf, nan, -inf, -inf, -inf],
        ],
        dtype=torch.float32,
        device=DEVICE,
    )
    tokens, logprobs, of_chosen = outputs(3, 6)
    chosen = torch.tensor([1, 1, -1], dtype=torch.int32, device=DEVICE)
    kernel(logits, chosen, tokens, logprobs, of_chosen)
    assert tokens.tolist() == [[1, 0, 2, 3, 4, -1], [0, 3, 1, 2, 4, -1], [0, 1, 2, 3, 4, -1]]
    half, quarter = np.log(0.5), np.log(0.25)
    expected = torch.tensor(
        [[half, quarter, quarter, *[-inf] * 3], [half, half, *[-inf] * 4], [-inf] * 6]
    )
    torch.testing.assert_close(logprobs.cpu(), expected, check_dtype=False)
    torch.testing.assert_close(of_chosen.cpu(), torch.tensor([half, -inf, -inf]), check_dtype=False)


def test_all_of_a_lane_are_the_best() -> None:
    """Tokens that share a lane, more than one lane's share among the wanted."""
    lanes = module.LANES
    logits = torch.zeros(1, 4 * lanes + 3, device=DEVICE)
    best = [5, 5 + lanes, 5 + 2 * lanes, 5 + 3 * lanes, 2, 2 + 4 * lanes]
    logits[0, best] = torch.tensor([9.0, 8.0, 7.0, 6.0, 6.0, 5.0], device=DEVICE)
    tokens, logprobs, of_chosen = outputs(1, 8)
    chosen = torch.zeros(1, dtype=torch.int32, device=DEVICE)
    top_logprobs(logits, chosen, tokens, logprobs, of_chosen)
    assert tokens[0].tolist() == [
        5,
        5 + lanes,
        5 + 2 * lanes,
        2,
        5 + 3 * lanes,
        2 + 4 * lanes,
        0,
        1,
    ]


@KERNELS
def test_arguments_are_checked(kernel: Any) -> None:
    logits = torch.zeros(2, 5, device=DEVICE)
    chosen = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match="in one piece"):
        kernel(logits.T, chosen, *outputs(5, 1))
    with pytest.raises(ValueError, match=r"\[2, K\]"):
        kernel(logits, chosen, *outputs(3, 1))
    with pytest.raises(ValueError, match=r"must be \[2\]"):
        kernel(logits, chosen[:1], *outputs(2, 1))

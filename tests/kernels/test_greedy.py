"""Greedy sampling in Triton and in torch: the tokens of the Rust sampler at temperature 0."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from pyengine.kernels.sampling.greedy import greedy, greedy_reference
from pyengine.kernels.sampling.inputs import SamplingInputs
from tests.kernels.backends import DEVICE, as_tensor
from tests.model.draws import Step, on_cpu, pack, random_logits, random_step

KERNELS = pytest.mark.parametrize("kernel", [greedy, greedy_reference])
DTYPES = [torch.float32, torch.bfloat16, torch.float16]


def run(kernel: Any, step: Step, logits: NDArray[Any], dtype: torch.dtype = torch.float32) -> Any:
    inputs = SamplingInputs.from_numpy(step.arrays(), DEVICE)
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=DEVICE)
    kernel(inputs, as_tensor(logits).to(dtype), tokens)
    return tokens.tolist()


@KERNELS
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 128, 700, 9000])
def test_tokens_are_those_of_rust(vocabulary: int, dtype: torch.dtype, kernel: Any) -> None:
    random = np.random.default_rng(vocabulary)
    step = random_step(random, 30, vocabulary)
    step.temperature = 0.0
    logits = random_logits(random, len(step.arrays()["logit_row"]), vocabulary)
    rounded = torch.from_numpy(logits).to(dtype).float().numpy()
    assert run(kernel, step, rounded, dtype) == on_cpu(step, rounded)[0].tolist()


@KERNELS
def test_equals_zeros_and_what_is_impossible(kernel: Any) -> None:
    nan, inf = np.nan, np.inf
    rows = [
        [nan] * 5, [-inf] * 5, [nan, -inf, 2, -inf, nan], [nan, 5, 2, inf, -inf],
        [1, inf, inf, 0, 0], [-0.0, 0.0, -1, -0.0, -2],
    ]  # fmt: skip
    # Equals are in one piece of the row, and in several.
    for apart in (1, 1000):
        logits = np.full((len(rows), 4 * apart + 1), -inf, np.float32)
        logits[:, ::apart] = rows
        step = Step(len(rows), temperature=0.0)
        expected = [-1, -1, 2 * apart, 3 * apart, apart, 0]
        assert run(kernel, step, logits) == on_cpu(step, logits)[0].tolist() == expected
        # Masks of one token each, and one of none.
        only = np.zeros((6, logits.shape[1]), bool)
        only[:, ::apart] = np.eye(6, 5, dtype=bool)
        step = Step(6, temperature=0.0, mask=pack(only))
        assert run(kernel, step, logits) == [0, apart, 2 * apart, 3 * apart, 4 * apart, -1]


@KERNELS
def test_a_chunk_of_the_logits_rows(kernel: Any) -> None:
    random = np.random.default_rng(2)
    step = random_step(random, 4, 90)
    step.temperature = 0.0
    arrays = step.arrays()
    logits = random_logits(random, len(arrays["logit_row"]), 90)
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device=DEVICE)
    kernel(SamplingInputs.from_numpy(arrays, DEVICE), as_tensor(logits[2:5]), tokens, first=2)
    expected = np.full(len(logits), -7)
    expected[2:5] = on_cpu(step, logits)[0][2:5]
    assert tokens.tolist() == expected.tolist()


@KERNELS
def test_arguments_are_checked(kernel: Any) -> None:
    inputs = SamplingInputs.from_numpy(Step(2).arrays(), DEVICE)
    tokens = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    for logits in (torch.zeros(5, 2, device=DEVICE).T, torch.zeros(2, 0, device=DEVICE)):
        with pytest.raises(ValueError, match="in one piece"):
            kernel(inputs, logits, tokens)
    kernel(inputs, torch.zeros(0, 5, device=DEVICE), tokens)

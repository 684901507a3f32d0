"""The sampling kernels on a GPU: draws enough for their distributions, large vocabularies."""

from typing import Any

import numpy as np
import pytest
import torch

from pyengine.kernels.sampling.greedy import greedy
from pyengine.kernels.sampling.inputs import SamplingInputs
from tests.kernels.backends import backend
from tests.model.draws import (
    RULES,
    SMALL_RULES,
    Language,
    Step,
    assert_drawn_from,
    exact,
    generate,
    on_cpu,
    random_drafts,
    random_logits,
    random_step,
)

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.mark.parametrize("reference", [True, False], ids=["torch", "triton"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 128, 1000, 2048, 32_000, 151_936])
def test_tokens_are_those_of_rust(vocabulary: int, dtype: Any, reference: bool) -> None:
    random = np.random.default_rng(vocabulary)
    step = random_step(random, 40 if vocabulary > 10_000 else 400, vocabulary)
    logits = random_logits(random, len(step.arrays()["logit_row"]), vocabulary)
    rounded = torch.from_numpy(logits).to(dtype).float().numpy()
    tokens, counts = backend(reference, dtype)(step, rounded)
    expected, expected_counts = on_cpu(step, rounded)
    assert (tokens == expected).all()
    assert (counts == expected_counts).all()


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("vocabulary", [1, 31, 4096, 32_000, 151_936])
def test_greedy_tokens_are_those_of_rust(vocabulary: int, dtype: Any) -> None:
    random = np.random.default_rng(vocabulary)
    step = random_step(random, 40, vocabulary)
    step.temperature = 0.0
    logits = random_logits(random, len(step.arrays()["logit_row"]), vocabulary)
    rounded = torch.from_numpy(logits).to(dtype)
    inputs = SamplingInputs.from_numpy(step.arrays(), "cuda")
    tokens = torch.full((len(logits),), -7, dtype=torch.int32, device="cuda")
    greedy(inputs, rounded.cuda(), tokens)
    assert tokens.tolist() == on_cpu(step, rounded.float().numpy())[0].tolist()


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_frequencies_match_probabilities(rules: dict[str, Any]) -> None:
    logits = np.random.default_rng(3).normal(0, 2, 400).astype(np.float32)
    drawn = backend(reference=False)(Step(40_000, **rules), np.tile(logits, (40_000, 1)))[0]
    assert_drawn_from(drawn, exact(logits, **rules))


@pytest.mark.parametrize("masked", [False, True], ids=["free", "masked"])
@pytest.mark.parametrize("rules", SMALL_RULES, ids=str)
def test_three_tokens_have_their_joint_distribution(rules: dict[str, Any], masked: bool) -> None:
    language, sequences = Language(1), 40_000
    given: dict[str, Any] = {"masked": masked, "sequences": sequences}
    drafts = random_drafts(sequences)
    drawn, per_step = generate(backend(False), language, rules, drafts=drafts, **given)
    assert_drawn_from(drawn, language.joint(rules, masked))
    assert per_step > 1.05
    assert (drawn == generate(on_cpu, language, rules, drafts=drafts, **given)[0]).all()

"""The sampler against exact probabilities, rule by rule and together."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuPenalties, CpuTensor, pick_allowed
from tests.model.draws import (
    RULES,
    Step,
    assert_drawn_from,
    cpu_rules,
    exact,
    on_cpu,
    pack,
    penalty_arrays,
    random_logits,
)

DRAWS = 20_000


def sample(logits: NDArray[Any], threads: int = 2, **rules: Any) -> NDArray[np.int32]:
    return on_cpu(Step(len(logits), **rules), logits, threads)[0]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("vocabulary", [17, 400])
def test_frequencies_match_probabilities(rules: dict[str, Any], vocabulary: int) -> None:
    logits = np.random.default_rng(3).normal(0, 2, vocabulary).astype(np.float32)
    drawn = sample(np.tile(logits, (DRAWS, 1)), **rules)
    assert_drawn_from(drawn, exact(logits, **rules))


@pytest.mark.parametrize("rules", RULES, ids=str)
def test_frequencies_under_a_mask(rules: dict[str, Any]) -> None:
    random = np.random.default_rng(4)
    logits = random.normal(0, 2, 75).astype(np.float32)
    allowed = random.random(75) < 0.3
    drawn = sample(np.tile(logits, (DRAWS, 1)), mask=pack(allowed[None]), mask_row=0, **rules)
    assert_drawn_from(drawn, exact(logits, allowed=allowed, **rules))


def test_positions_draw_independently() -> None:
    logits = np.zeros((2000, 2), np.float32)
    drawn = sample(logits, seed=2**64 - 5, position=np.arange(2000))
    assert 850 < drawn.sum() < 1150
    pairs = np.bincount(drawn[:-1] * 2 + drawn[1:], minlength=4)
    assert pairs.min() > 400


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (64, 1000)).astype(np.float32)
    rules: dict[str, Any] = {"temperature": 0.9, "top_k": 300, "top_p": 0.95, "min_p": 0.001}
    together = sample(logits, **rules)
    assert (together == sample(logits, threads=1, **rules)).all()
    for row in (0, 13, 63):
        assert sample(logits[row : row + 1].copy(), seed=row, **rules)[0] == together[row]
    assert (together != sample(logits, seed=np.arange(64) + 1000, **rules)).any()


def test_equal_logits_are_cut_by_their_ids() -> None:
    logits = np.zeros((4000, 50), np.float32)
    assert set(sample(logits, top_k=3).tolist()) == {0, 1, 2}
    assert set(sample(logits, top_p=0.09).tolist()) == {0, 1, 2, 3, 4}
    assert set(sample(logits, temperature=0.0).tolist()) == {0}


def test_bfloat16_logits() -> None:
    values = np.random.default_rng(1).normal(0, 2, (32, 300)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exactly = (bits.astype(np.uint32) << 16).view(np.float32)
    assert (sample(bits) == sample(exactly)).all()


def test_a_mask_of_one_token_needs_no_logits() -> None:
    logits = np.full((3, 40), np.nan, np.float32)
    only = np.eye(40, dtype=bool)[[39, 0, 31]]
    assert sample(logits, mask=pack(only)).tolist() == [39, 0, 31]
    assert sample(logits, mask=pack(np.zeros((3, 40), bool))).tolist() == [-1, -1, -1]
    assert sample(logits).tolist() == [-1, -1, -1]


def test_a_chunk_of_the_logits_rows() -> None:
    logits = np.random.default_rng(5).normal(0, 2, (7, 90)).astype(np.float32)
    step = Step(3, lengths=np.array([2, 1, 4], np.int32))
    rules = cpu_rules(step.arrays())
    out = np.full(7, -7, np.int32)
    kernels = CpuKernels(1)
    for first, rows in ((0, 3), (3, 3), (6, 1)):
        part = CpuTensor(logits[first : first + 3].copy())
        kernels.sample(rules, part, CpuTensor(out), first, rows)
    alone = [
        sample(logits[at : at + 1].copy(), seed=row, position=7 + within)[0]
        for at, (row, within) in enumerate([(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2), (2, 3)])
    ]
    assert out.tolist() == alone


def test_pick_takes_the_nth_allowed_token() -> None:
    allowed = np.zeros((3, 70), bool)
    allowed[0, [3, 31, 32, 69]] = True
    allowed[2, 64] = True
    mask, out = pack(allowed), np.full(8, 5, np.int32)
    rows = np.array([0, 0, 0, 0, 0, -1, 1, 2], np.int32)
    hashes = np.array([0, 1, 2, 3, 2**64 - 1, 0, 7, 2**63 + 1], np.uint64)
    pick_allowed(mask, 3, rows, hashes, out)
    assert out.tolist() == [3, 31, 32, 69, 69, 5, -1, 64]
    with pytest.raises(ValueError, match="no mask row 3 among 3"):
        pick_allowed(mask, 3, np.array([3], np.int32), hashes, out)
    with pytest.raises(ValueError, match="hashes has 8 elements, needs 9"):
        pick_allowed(mask, 3, np.zeros(9, np.int32), hashes, np.zeros(9, np.int32))


def test_penalties_change_logits_and_are_undone() -> None:
    random = np.random.default_rng(8)
    raw = random.normal(0, 2, (6, 300)).astype(np.float32)
    factor = np.where(random.random(raw.shape) < 0.1, 1.4, 1.0)
    add = np.where(random.random(raw.shape) < 0.1, random.normal(0, 3, raw.shape), 0.0)
    add[:, 17] = -np.inf
    arrays = penalty_arrays(factor, add)
    penalties = CpuPenalties(**arrays, before=np.zeros(len(arrays["token"]), np.float32))
    logits, kernels = raw.copy(), CpuKernels(1)
    for first, rows in ((0, 4), (4, 2)):
        part = CpuTensor(logits[first : first + rows])
        kernels.apply_penalties(penalties, part, first, rows)
        wanted = np.where(raw > 0, raw / factor, raw * factor) + add
        np.testing.assert_allclose(logits[first : first + rows], wanted[first : first + rows], 1e-6)
        kernels.restore(penalties, part, first, rows)
    assert (logits == raw).all()
    with pytest.raises(ValueError, match="more logits rows"):
        kernels.apply_penalties(penalties, CpuTensor(logits), 3, 4)
    with pytest.raises(ValueError, match="a penalty for a token outside the vocabulary"):
        kernels.apply_penalties(penalties, CpuTensor(np.zeros((6, 20), np.float32)), 0, 6)


@pytest.mark.parametrize("width", [0, 3, 20])
def test_log_probabilities_are_the_log_softmax(width: int) -> None:
    random = np.random.default_rng(9)
    logits = random_logits(random, 40, 500)
    logits[np.isinf(logits)] = 0.0
    wanted = random.integers(-1, width + 1, 40).astype(np.int32)
    chosen = random.integers(0, 500, 40).astype(np.int32)
    tokens = np.full((40, max(width, 1)), -7, np.int32)
    logprobs, of_chosen = np.full(tokens.shape, -7, np.float32), np.full(40, -7, np.float32)
    out = [CpuTensor(array) for array in (tokens, logprobs, of_chosen)]
    kernels = CpuKernels(2)
    for first, rows in ((0, 25), (25, 15)):
        part = CpuTensor(logits[first : first + rows].copy())
        kernels.top_logprobs(
            CpuTensor(wanted), part, CpuTensor(chosen), out[0], out[1], out[2], first, rows
        )
    for row in range(40):
        count = wanted[row]
        if count < 0:
            assert of_chosen[row] == -7
            continue
        numbers = np.where(np.isnan(logits[row]), -np.inf, logits[row]).astype(np.float64)
        exactly = numbers - numbers.max() - np.log(np.exp(numbers - numbers.max()).sum())
        order = np.lexsort((np.arange(500), -numbers))[:count]
        assert tokens[row, :count].tolist() == order.tolist()
        np.testing.assert_allclose(logprobs[row, :count], exactly[order], atol=1e-4)
        np.testing.assert_allclose(of_chosen[row], exactly[chosen[row]], atol=1e-4)


def test_arguments_are_checked() -> None:
    with pytest.raises(ValueError, match="cannot hold"):
        CpuTensor(np.zeros(3, np.float64))
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        CpuTensor(np.zeros((4, 4), np.float32)[:, ::2])
    rules = cpu_rules(Step(2, lengths=np.array([1, 2], np.int32)).arrays())
    logits, out = CpuTensor(np.zeros((4, 8), np.float32)), CpuTensor(np.zeros(4, np.int32))
    kernels = CpuKernels(1)
    with pytest.raises(ValueError, match="more logits rows"):
        kernels.sample(rules, logits, out, 0, 4)
    with pytest.raises(ValueError, match="out must be Int32"):
        kernels.sample(rules, logits, logits, 0, 1)
    with pytest.raises(ValueError, match="more sampling rows"):
        kernels.verify(rules, out, out, CpuTensor(np.zeros(9, np.int32)), 3)
    with pytest.raises(ValueError, match="draft that is not among the tokens"):
        kernels.verify(rules, CpuTensor(np.zeros(1, np.int32)), out, out, 2)

"""The sampler against exact probabilities, rule by rule and together."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuRules, CpuTensor

DRAWS = 40_000
# Quantile 0.9999 of the chi-square distribution by Wilson and Hilferty; the seeds are fixed, so
# that a correct sampler passes always.
NORMAL_QUANTILE = 3.719


def sample(
    logits: NDArray[np.float32],
    *,
    temperature: float = 1.0,
    top_k: int = 0,
    top_p: float = 1.0,
    min_p: float = 0.0,
    seeds: NDArray[np.uint64] | None = None,
    position: int = 7,
    threads: int = 2,
) -> NDArray[np.int32]:
    rows = len(logits)
    seeds = np.arange(rows, dtype=np.uint64) if seeds is None else seeds
    rules = CpuRules(
        np.full(rows, temperature, np.float32),
        np.full(rows, top_k, np.int32),
        np.full(rows, top_p, np.float32),
        np.full(rows, min_p, np.float32),
        seeds,
        np.full(rows, position, np.int64),
    )
    out = np.full(rows, -1, np.int32)
    CpuKernels(threads).sample(rules, CpuTensor(logits), CpuTensor(out), 0, rows)
    return out


def exact(
    logits: NDArray[np.float32], temperature: float, top_k: int, top_p: float, min_p: float
) -> NDArray[np.float64]:
    """The distribution by its definition, in float64."""
    scaled = logits.astype(np.float64) / temperature
    p = np.exp(scaled - scaled.max())
    p /= p.sum()
    order = np.lexsort((np.arange(len(p)), -p))
    kept = np.zeros(len(p), bool)
    kept[order[: top_k or len(p)]] = True
    p = np.where(kept, p, 0.0)
    p /= p.sum()
    if top_p < 1.0:
        reached = np.cumsum(p[order])
        count = int(np.searchsorted(reached, np.float32(top_p), side="left")) + 1
        p[order[count:]] = 0.0
        p /= p.sum()
    p[p < np.float32(min_p) * p.max()] = 0.0
    return p / p.sum()


RULES: list[dict[str, Any]] = [
    {},
    {"temperature": 0.6},
    {"temperature": 1.7},
    {"top_k": 5},
    {"top_k": 1},
    {"top_p": 0.7},
    {"top_p": 0.05},
    {"min_p": 0.1},
    {"temperature": 1.3, "top_k": 20, "top_p": 0.9},
    {"temperature": 0.8, "top_p": 0.95, "min_p": 0.05},
    {"temperature": 1.5, "top_k": 90, "top_p": 0.97, "min_p": 0.02},
]


@pytest.mark.parametrize("rules", RULES, ids=str)
@pytest.mark.parametrize("vocabulary", [17, 400])
def test_frequencies_match_probabilities(rules: dict[str, Any], vocabulary: int) -> None:
    logits = np.random.default_rng(3).normal(0, 2, vocabulary).astype(np.float32)
    given = {"temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0} | rules
    p = exact(logits, **given)
    drawn = sample(np.tile(logits, (DRAWS, 1)), **given)
    counts = np.bincount(drawn, minlength=vocabulary)
    assert counts[p == 0].sum() == 0
    expected = p * DRAWS
    # Cells with few draws go together, as the test wants.
    rare = expected < 8
    observed = np.append(counts[~rare], counts[rare].sum())
    expected = np.append(expected[~rare], expected[rare].sum())
    observed, expected = observed[expected > 0], expected[expected > 0]
    freedom = len(expected) - 1
    if freedom == 0:
        assert observed.tolist() == [DRAWS]
        return
    chi2 = float(((observed - expected) ** 2 / expected).sum())
    ninth = 2 / (9 * freedom)
    assert chi2 < freedom * (1 - ninth + NORMAL_QUANTILE * ninth**0.5) ** 3


def test_positions_draw_independently() -> None:
    logits = np.zeros((1, 2), np.float32)
    seed = np.array([2**64 - 5], np.uint64)
    drawn = np.array([sample(logits, seeds=seed, position=i)[0] for i in range(2000)])
    assert 850 < drawn.sum() < 1150
    pairs = np.bincount(drawn[:-1] * 2 + drawn[1:], minlength=4)
    assert pairs.min() > 400


def test_a_row_does_not_depend_on_its_batch() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (64, 1000)).astype(np.float32)
    rules = {"temperature": 0.9, "top_k": 300, "top_p": 0.95, "min_p": 0.001}
    together = sample(logits, **rules)
    assert (together == sample(logits, threads=1, **rules)).all()
    for row in (0, 13, 63):
        seed = np.array([row], np.uint64)
        assert sample(logits[row : row + 1].copy(), seeds=seed, **rules)[0] == together[row]
    other = np.arange(64, dtype=np.uint64) + 1000
    assert (together != sample(logits, seeds=other, **rules)).any()


def test_equal_logits_are_cut_by_their_ids() -> None:
    logits = np.zeros((4000, 50), np.float32)
    assert set(sample(logits, top_k=3).tolist()) == {0, 1, 2}
    assert set(sample(logits, top_p=0.09).tolist()) == {0, 1, 2, 3, 4}
    assert set(sample(logits, temperature=0.0).tolist()) == {0}


def test_bfloat16_logits() -> None:
    values = np.random.default_rng(1).normal(0, 2, (32, 300)).astype(np.float32)
    bits = (values.view(np.uint32) >> 16).astype(np.uint16)
    exactly = (bits.astype(np.uint32) << 16).view(np.float32)
    assert (sample(bits) == sample(exactly)).all()  # type: ignore[arg-type]


def test_arguments_are_checked() -> None:
    one = np.ones(1, np.float32)
    with pytest.raises(ValueError, match="cannot hold"):
        CpuTensor(np.zeros(3, np.float64))
    with pytest.raises((ValueError, BufferError), match="contiguous"):
        CpuTensor(np.zeros((4, 4), np.float32)[:, ::2])
    rules = CpuRules(
        one, np.zeros(1, np.int32), one, one, np.zeros(1, np.uint64), np.zeros(1, np.int64)
    )
    logits, out = CpuTensor(np.zeros((2, 8), np.float32)), CpuTensor(np.zeros(2, np.int32))
    with pytest.raises(ValueError, match="temperature has 1 elements, needs 2"):
        CpuKernels(1).sample(rules, logits, out, 0, 2)
    with pytest.raises(ValueError, match="out must be Int32"):
        CpuKernels(1).sample(rules, logits, logits, 0, 1)

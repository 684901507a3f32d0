"""Ratios of paired times: where they lie, and that intervals hold what they should as often."""

import itertools

import numpy as np
import pytest

from benches.paired import LEAST_ROUNDS, ratio_of, turns


def test_the_middle_of_all_means() -> None:
    logs = [0.0, 0.1, 0.2, 0.4, 0.5, 3.0]
    means = sorted((a + b) / 2 for a, b in itertools.combinations_with_replacement(logs, 2))
    found = ratio_of(np.exp(logs).tolist())
    assert np.log(found.value) == pytest.approx(means[10])
    # Of 64 patterns of signs one has all differences below: with six rounds all are needed.
    assert (np.log(found.low), np.log(found.high)) == pytest.approx((0.0, 3.0))


def test_one_stalled_round_moves_little() -> None:
    even = [1.0] * 20
    assert ratio_of([*even, 9.0]).value == pytest.approx(1.0)
    found = ratio_of([*even, 9.0])
    assert (found.low, found.high) == pytest.approx((1.0, 1.0))


def test_ranks_are_those_of_wilcoxons_tables() -> None:
    # Published critical values for 95%, two-sided: the greatest sum of ranks that is too small.
    for rounds, critical in ((6, 0), (8, 3), (10, 8), (15, 25), (20, 52), (25, 89)):
        ratios = np.exp(np.arange(rounds) ** 2.0 / 1000)
        first, second = np.triu_indices(rounds)
        logs = np.log(ratios)
        means = np.sort((logs[first] + logs[second]) / 2)
        assert np.log(ratio_of(ratios.tolist()).low) == pytest.approx(means[critical])


@pytest.mark.parametrize("rounds", [LEAST_ROUNDS, 12, 21])
def test_intervals_hold_the_truth_as_often_as_they_say(rounds: int) -> None:
    """Also with noise that has heavy tails, as other work on a machine has."""
    random = np.random.default_rng(3)
    held = 0
    for _ in range(600):
        found = ratio_of(np.exp(0.2 + 0.05 * random.standard_t(2, rounds)).tolist())
        held += found.low <= np.exp(0.2) <= found.high
    assert held / 600 > 0.93
    # With six rounds the interval holds it in 31 of 32 runs: there is none that is shorter.
    assert held / 600 < (0.99 if rounds == LEAST_ROUNDS else 0.975)


def test_too_few_say_nothing() -> None:
    with pytest.raises(ValueError, match="5 rounds; an interval takes 6"):
        ratio_of([1.0] * 5)


def test_each_goes_first_as_often() -> None:
    assert turns(4) == [(0, 1), (1, 0), (0, 1), (1, 0)]

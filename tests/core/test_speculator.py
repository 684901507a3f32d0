"""The speculator's Python face: whole outputs go in, and help the next ones of their tenant."""

import numpy as np
import pytest

from pyengine._core import Speculator

ANSWER = np.arange(100, 400, dtype=np.uint32)


def test_an_output_is_drafted_the_second_time_for_its_tenant() -> None:
    speculator = Speculator(10_000, max_draft=4)
    assert speculator.replay(1, ANSWER, True) == (0, 0)
    speculator.remember(1, ANSWER)
    speculator.tend(1000)
    assert speculator.stats()["history_tokens"] == len(ANSWER)
    # From the third token on a suffix of two is known; the last drafts end with the output.
    drafted, right = speculator.replay(1, ANSWER, True)
    assert drafted == right == 4 * (len(ANSWER) - 2) - 6
    assert speculator.replay(1, ANSWER, False) == (0, 0)
    assert speculator.replay(2, ANSWER, True) == (0, 0)


def test_the_bound_of_the_history_holds() -> None:
    speculator = Speculator(500)
    for start in range(0, 3000, 300):
        speculator.remember(start % 2, ANSWER + np.uint32(start))
        speculator.tend(1000)
        assert speculator.stats()["history_tokens"] <= 500
    assert speculator.stats()["history_bytes"] > 0


def test_tokens_are_u32() -> None:
    with pytest.raises(TypeError, match="u32"):
        Speculator(10).remember(0, np.zeros(3, dtype=np.float32))

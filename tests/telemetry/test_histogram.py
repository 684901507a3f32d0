"""The arithmetic of histograms that have arrived."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.telemetry import HistogramTotal

EMPTY = HistogramTotal([10, 20, 40], [0, 0, 0, 0], 0)


def test_empty_histogram_is_zero() -> None:
    assert (EMPTY.count, EMPTY.mean, EMPTY.quantile(0.5), EMPTY.quantile(1)) == (0, 0, 0, 0)


def test_quantiles_are_interpolated() -> None:
    histogram = HistogramTotal([10, 20, 40], [0, 4, 4, 0], 180)
    assert (histogram.count, histogram.mean) == (8, 22.5)
    assert histogram.quantile(0.25) == 15
    assert histogram.quantile(0.5) == 20
    assert histogram.quantile(0.75) == 30
    assert histogram.quantile(1) == 40
    assert HistogramTotal([10], [0, 3], 99).quantile(0.5) == 10


@given(st.lists(st.integers(1, 60), min_size=1), st.floats(0.01, 1))
def test_a_quantile_lies_in_its_bucket(values: list[int], share: float) -> None:
    bounds = [10, 20, 40]
    ranges = list(zip([0, *bounds], [*bounds, 10**9], strict=True))
    counts = [sum(low < value <= high for value in values) for low, high in ranges]
    got = HistogramTotal(bounds, counts, sum(values)).quantile(share)
    # The value of that rank, and the bucket that it lies in.
    rank = next(n for n in range(1, len(values) + 1) if n >= share * len(values) - 1e-9)
    value = sorted(values)[rank - 1]
    low, high = next((low, high) for low, high in ranges if low < value <= high)
    assert min(low, 40) <= got <= min(high, 40) or got == pytest.approx(low)

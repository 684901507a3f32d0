"""Distributions as the planner counts them."""

from bisect import bisect_left
from itertools import accumulate

import msgspec


class HistogramTotal(msgspec.Struct, array_like=True, frozen=True):
    """Counts of values since the engine started.

    Attributes:
        bounds: Upper bounds of the buckets; a bound belongs to its bucket.
        counts: Values in each bucket, not cumulated; one more than bounds, for what is above all.
        sum: All values added up.
    """

    bounds: list[int]
    counts: list[int]
    sum: int

    def since(self, earlier: "HistogramTotal") -> "HistogramTotal":
        """The difference to ``earlier``, of the same distribution; an empty one had no values."""
        before = earlier.counts or [0] * len(self.counts)
        counts = [now - then for now, then in zip(self.counts, before, strict=True)]
        return HistogramTotal(self.bounds, counts, self.sum - earlier.sum)

    @property
    def count(self) -> int:
        """Number of values."""
        return sum(self.counts)

    @property
    def mean(self) -> float:
        """Their mean; 0 of none."""
        return self.sum / self.count if self.count else 0.0

    def quantile(self, share: float) -> float:
        """The value that ``share`` (above 0, at most 1) of all do not exceed; 0 of none.

        Interpolated within its bucket, as Prometheus' ``histogram_quantile`` does it; what lies
        above the last bound counts as that.
        """
        cumulated = list(accumulate(self.counts))
        if not cumulated or not cumulated[-1]:
            return 0.0
        rank = share * cumulated[-1]
        at = bisect_left(cumulated, rank)
        if at == len(self.bounds):
            return float(self.bounds[-1])
        lower = self.bounds[at - 1] if at else 0
        before = cumulated[at - 1] if at else 0
        return lower + (self.bounds[at] - lower) * (rank - before) / self.counts[at]

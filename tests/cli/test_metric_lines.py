"""Metrics as lines of text."""

from pyengine.cli.metric_lines import metric_lines
from pyengine.messages import Report
from pyengine.telemetry import HistogramTotal, Totals

NOTHING = HistogramTotal([1, 2], [0, 0, 0], 0)


def test_times_are_in_milliseconds_and_lengths_in_tokens() -> None:
    histograms = {
        "queue_time_ns": HistogramTotal([2_000_000, 4_000_000], [0, 4, 0], 12_000_000),
        "prompt_length": HistogramTotal([8, 16], [0, 2, 0], 24),
        "duration_ns": NOTHING,
    }
    totals = Totals(1100, 1000, 3, 7, [0, 3], 12, 0, 35.5, [])
    assert metric_lines(
        Report(1, {"prompt_tokens": 24, "running": 1, "waiting": 0}, histograms, totals)
    ) == {
        "prompt tokens": "24",
        "running": "1",
        "queue time": "mean 3 ms, p50 3, p99 3.98, 4 values",
        "prompt length": "mean 12 tokens, p50 12, p99 15.92, 2 values",
        "cpu overhead": "10.00% of the device's time",
    }

"""The engine's metrics as lines of text."""

from pyengine.messages import Report
from pyengine.telemetry import HistogramTotal

MS = 1e-6  # of a nanosecond


def metric_lines(report: Report) -> dict[str, str]:
    """Name and value of each metric that is not 0."""
    lines = {_words(name): str(value) for name, value in report.stats.items() if value}
    for name, histogram in report.histograms.items():
        if histogram.count:
            lines[_words(name)] = _distribution(name, histogram)
    totals = report.telemetry
    if totals.busy_ns:
        lines["cpu overhead"] = f"{totals.exposed_cpu_ratio:.2%} of the device's time"
    return lines


def _distribution(name: str, histogram: HistogramTotal) -> str:
    scale, unit = (MS, " ms") if name.endswith("_ns") else (1.0, " tokens")
    p50, p99 = (histogram.quantile(share) * scale for share in (0.5, 0.99))
    mean = histogram.mean * scale
    return f"mean {mean:.4g}{unit}, p50 {p50:.4g}, p99 {p99:.4g}, {histogram.count} values"


def _words(name: str) -> str:
    return name.removesuffix("_ns").replace("_", " ")

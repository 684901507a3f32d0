"""Results in the terminal, a column each."""

from typing import Any

from rich.table import Table

from pyengine.benchmark.result import MEASURES, PERCENTILES
from pyengine.profiling.table import columns

_ROWS = (
    ("requests", "completed", ",.0f"),
    ("failed", "failed", ",.0f"),
    ("requests/s", "request_throughput", ",.2f"),
    ("good requests/s", "request_goodput", ",.2f"),
    ("output tokens/s", "output_throughput", ",.1f"),
    ("all tokens/s", "total_token_throughput", ",.1f"),
)


def table(results: list[dict[str, Any]]) -> Table:
    """``results`` side by side."""
    limits = ((each["url"], each["max_concurrency"]) for each in results)
    shown = columns("", (url + ("" if limit is None else f", {limit}") for url, limit in limits))
    for name, key, form in _ROWS:
        if any(each[key] for each in results):
            shown.add_row(name, *(_written(each[key], form) for each in results))
    for measure in MEASURES:
        shown.add_section()
        for at in PERCENTILES:
            key = f"p{at}_{measure}_ms"
            shown.add_row(f"{measure} p{at}, ms", *(f"{each[key]:,.2f}" for each in results))
    return shown


def _written(value: float | None, form: str) -> str:
    return "" if value is None else f"{value:{form}}"

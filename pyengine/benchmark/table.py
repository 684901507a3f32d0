"""Results in the terminal, a column each."""

from typing import Any

from rich.table import Table

from pyengine.benchmark.result import MEASURES, PERCENTILES

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
    shown = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    shown.add_column("")
    for each in results:
        limit = each["max_concurrency"]
        shown.add_column(
            each["url"] + ("" if limit is None else f", {limit}"), justify="right", overflow="fold"
        )
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

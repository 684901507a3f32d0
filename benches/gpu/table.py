"""Rows of figures as people read them: units by the names of the columns."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def shown(name: str, value: Any) -> str:
    """``value`` of the column ``name``: seconds and bytes in a fitting unit, ``-`` for none."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if name == "per_second":
        return _scaled(value, 1000.0, ("/s", "K/s", "M/s", "G/s", "T/s", "P/s"))
    if name.endswith("per_s"):
        return f"{value:,.0f}"
    if name.endswith("_s"):
        return _scaled(value * 1e6, 1000.0, (" µs", " ms", " s"))
    if name.endswith("bytes"):
        return _scaled(float(value), 1024.0, (" B", " KiB", " MiB", " GiB", " TiB"))
    if name.endswith("ratio"):
        return f"{value:.2%}"
    return f"{value:,.2f}" if isinstance(value, float) else str(value)


def heading(name: str) -> str:
    """The column ``name`` as it is written over it: units are with the figures."""
    if name.endswith("_per_s"):
        return name.removesuffix("_per_s").replace("_", " ") + "/s"
    for unit in ("_s", "_bytes", "_ratio"):
        name = name.removesuffix(unit)
    return name.replace("_", " ")


def table(columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> str:
    """The rows, aligned; columns in which nothing stands are left out."""
    rows = list(rows)
    columns = [name for name in columns if any(row.get(name) is not None for row in rows)]
    cells = [[shown(name, row.get(name)) for name in columns] for row in rows]
    heads = [heading(name) for name in columns]
    widths = [max(map(len, column)) for column in zip(heads, *cells, strict=True)]
    text = [
        # Words to the left, numbers to the right.
        any(isinstance(row.get(name), str) for row in rows)
        for name in columns
    ]
    lines = [
        "  ".join(
            cell.ljust(width) if left else cell.rjust(width)
            for cell, width, left in zip(line, widths, text, strict=True)
        ).rstrip()
        for line in [heads, *cells]
    ]
    return "\n".join(lines)


def line(row: Mapping[str, Any]) -> str:
    """One row in one line, printed as it comes."""
    return ", ".join(
        value if isinstance(row[name], str) else f"{heading(name)} {value}"
        for name, value in ((name, shown(name, row[name])) for name in row)
        if row[name] is not None
    )


def _scaled(value: float, step: float, units: Sequence[str]) -> str:
    for unit in units[:-1]:
        if abs(value) < step:
            return f"{value:.3g}{unit}" if value < 100 else f"{value:.0f}{unit}"
        value /= step
    return f"{value:.3g}{units[-1]}"

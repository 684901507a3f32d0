"""The targets, and whether the figures reach them: the bench in a few lines."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

Rows = Mapping[str, Sequence[Mapping[str, Any]]]
"""The rows of each part, by its name."""


@dataclass(frozen=True)
class Finding:
    """A figure beside what it is to be at most.

    Attributes:
        what: Which figure.
        measured: None where it was not.
        at_most: None where it is for comparison alone.
        met: Whether it was.
    """

    what: str
    measured: float | None
    at_most: float | None = None

    @property
    def met(self) -> bool | None:
        """None where nothing was measured, or wanted."""
        if self.measured is None or self.at_most is None:
            return None
        return self.measured <= self.at_most


def figure(rows: Rows, part: str, column: str, **where: Any) -> float | None:
    """The figure in ``column`` of the first row of ``part`` that has these values."""
    for row in rows.get(part, ()):
        if all(row[name] == value for name, value in where.items()):
            value = row[column]
            return None if value is None else float(value)
    return None


def findings(rows: Rows) -> list[Finding]:
    """The project's targets for an H200 and Llama-3-8B's shape, then the peers."""
    at = {"context": 512}
    return [
        Finding(
            "a token's time over its floor, 1 sequence",
            figure(rows, "decode", "over_floor", sequences=1, **at),
            1.25,
        ),
        Finding(
            "milliseconds a token, 32 sequences",
            _scaled(figure(rows, "decode", "token_s", sequences=32, **at), lambda s: s * 1e3),
            8.4,
        ),
        Finding(
            "exposed CPU time, 64 sequences, percent",
            _scaled(
                figure(rows, "overhead", "exposed_ratio", sequences=64, placement="process"),
                lambda ratio: ratio * 100,
            ),
            3.0,
        ),
        *_peers(rows, at),
    ]


def _peers(rows: Rows, at: dict[str, Any]) -> Iterator[Finding]:
    for row in rows.get("baselines", ()):
        ours = figure(rows, "decode", "token_s", sequences=row["sequences"], **at)
        theirs = row["token_s"]
        if ours is not None and theirs is not None and row["context"] == at["context"]:
            what = f"a token's time over that of {row['peer']}, {row['sequences']} sequences"
            yield Finding(what, ours / theirs)


def _scaled(value: float | None, by: Callable[[float], float]) -> float | None:
    return None if value is None else by(value)


def as_row(finding: Finding) -> dict[str, Any]:
    """For the table, and for JSON."""
    return {
        "what": finding.what,
        "measured": finding.measured,
        "at_most": finding.at_most,
        "met": finding.met,
    }

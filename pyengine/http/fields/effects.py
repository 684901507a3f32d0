"""Effects that a field may have which the type of a request does not have.

A type may have some of the fields that an effect names: the first that it has is meant.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import msgspec


@dataclass(frozen=True)
class Hint:
    """A field that cannot change this answer."""


@dataclass(frozen=True)
class Refused:
    """A field that would change the answer.

    Attributes:
        say: The honoured fields to use instead, with spaces between.
        neutral: Values that ask for what is done anyway; null always is one.
    """

    say: str = ""
    neutral: tuple[Any, ...] = ()

    def at(self, fields: Container[str]) -> Self:
        """Names the field to use of a type that has ``fields``."""
        return replace(self, say=_first(self.say, fields))


@dataclass(frozen=True)
class Alias:
    """Another name of one of the honoured fields ``of``, with spaces between.

    Attributes:
        instead: Values, each with the one that the field has for it.
    """

    of: str
    instead: tuple[tuple[Any, Any], ...] = ()

    def at(self, fields: Container[str]) -> Self | None:
        """Names the field of a type that has ``fields``; None where it has none of them."""
        of = _first(self.of, fields)
        return replace(self, of=of) if of else None


Effect = Hint | Refused | Alias
Effects = dict[str, Effect]
Table = Mapping[type[msgspec.Struct], Effects]


def hint(names: str) -> Effects:
    """Effects of fields, by their names with spaces between."""
    return dict.fromkeys(names.split(), Hint())


def refused(names: str, *neutral: Any, say: str = "") -> Effects:
    """Effects of fields that are refused."""
    return dict.fromkeys(names.split(), Refused(say, neutral))


def alias(of: str, names: str, *instead: tuple[Any, Any]) -> Effects:
    """Effects of other names."""
    return dict.fromkeys(names.split(), Alias(of, instead))


def _first(names: str, fields: Container[str]) -> str:
    return next((name for name in names.split() if name.split(".")[0] in fields), "")

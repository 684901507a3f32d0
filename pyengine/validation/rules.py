"""Rules for values, as tables: each in words, for the error, and in code."""

import math
import reprlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Rule(Generic[T]):
    """A condition that one field must meet.

    Attributes:
        name: The field; a float there must be finite besides.
        wanted: In words, behind "must be"; ``{given}`` stands for the whole, with its attributes.
        holds: In code, of the whole.
    """

    name: str
    wanted: str
    holds: Callable[[T], bool]


def broken(rules: Iterable[Rule[T]], given: T) -> tuple[str, str] | None:
    """The first rule that ``given`` breaks: the field's name, and a message that names it."""
    for rule in rules:
        value = getattr(given, rule.name)
        if not rule.holds(given) or (isinstance(value, float) and not math.isfinite(value)):
            # The value may be megabytes long.
            shown = reprlib.repr(value)
            return (
                rule.name,
                f"'{rule.name}' must be {rule.wanted.format(given=given)}, not {shown}",
            )
    return None

"""The JSON-Schema-Test-Suite, read and put through anything that compiles schemas.

What is asked of a schema that is accepted: every valid instance can be written, no invalid one
can. A value can be written if one of the orders of its keys can: an engine may fix the order.
Numbers are written plainly (whole ones without a point, others without an exponent), text as
``json.dumps`` does with ``ensure_ascii=False``. Where the suite takes ``format`` as an annotation,
an engine may narrow to the format; such instances are counted apart.
"""

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import islice, permutations, product
from pathlib import Path
from typing import Any

MOST_ORDERS = 300

# Takes a text and says whether it is a whole answer.
Accepts = Callable[[str], bool]


class RefusedError(Exception):
    """The schema is not accepted."""


@dataclass
class Group:
    """A schema with instances."""

    file: str
    description: str
    schema: Any
    # (description, instance, whether it is valid)
    tests: list[tuple[str, Any, bool]]


@dataclass
class Outcome:
    """What became of the suite."""

    accepted: int = 0
    refused: int = 0
    instances: int = 0
    by_format: int = 0
    wrong: list[str] = field(default_factory=list)
    # (file, description) of the schemas that were accepted and kept.
    right: set[tuple[str, str]] = field(default_factory=set)


def read(folder: Path) -> list[Group]:
    """All groups, in the order of the files."""
    groups = []
    for path in sorted(folder.glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            tests = [(test["description"], test["data"], test["valid"]) for test in group["tests"]]
            groups.append(Group(path.stem, group["description"], group["schema"], tests))
    return groups


def written(value: Any) -> str:
    """As ``json.dumps`` writes it, numbers plainly."""
    match value:
        case dict():
            members = (f"{written(name)}: {written(item)}" for name, item in value.items())
            return "{" + ", ".join(members) + "}"
        case list():
            return "[" + ", ".join(map(written, value)) + "]"
        case float():
            number = Decimal(repr(value))
            whole = number == number.to_integral_value()
            return str(int(number)) if whole else format(number.normalize(), "f")
        case _:
            return json.dumps(value, ensure_ascii=False)


def orders(value: Any) -> Iterator[Any]:
    """The value with the keys of its objects in all orders, its own first."""
    match value:
        case dict():
            for names in permutations(value):
                for items in product(*(list(islice(orders(value[name]), 24)) for name in names)):
                    yield dict(zip(names, items, strict=True))
        case list():
            yield from map(list, product(*(list(islice(orders(item), 24)) for item in value)))
        case _:
            yield value


def can_write(accepts: Accepts, value: Any) -> bool:
    """Whether the value is accepted in some order of its keys."""
    return any(accepts(written(order)) for order in islice(orders(value), MOST_ORDERS))


def run(groups: list[Group], compile_schema: Callable[[Any], Accepts]) -> Outcome:
    """Put the suite through an engine; ``compile_schema`` raises :class:`RefusedError`."""
    outcome = Outcome()
    for group in groups:
        try:
            accepts = compile_schema(group.schema)
        except RefusedError:
            outcome.refused += 1
            continue
        outcome.accepted += 1
        before = len(outcome.wrong)
        for description, instance, valid in group.tests:
            outcome.instances += 1
            if can_write(accepts, instance) == valid:
                continue
            if valid and group.file == "format" and isinstance(instance, str):
                outcome.by_format += 1
                continue
            place = f"{group.file}: {group.description}: {description}"
            outcome.wrong.append(f"{place}: {'stopped' if valid else 'passed'}")
        if len(outcome.wrong) == before:
            outcome.right.add((group.file, group.description))
    return outcome

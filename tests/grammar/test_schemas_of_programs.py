"""Schemas as libraries and generators write them: enforced exactly, whatever is drawn."""

import json
from typing import Any, NamedTuple

import pytest
from jsonschema import Draft202012Validator

from tests.grammar.random_walks import walk
from tests.grammar.test_grammar import demo

KINDS = [f"kind{at}" for at in range(30)]


class Case(NamedTuple):
    """A schema, values that it allows, and values that it does not."""

    schema: dict[str, Any]
    good: list[Any]
    bad: list[Any]


CASES = {
    "pydantic Decimal": Case(
        {
            "anyOf": [
                {"type": "number"},
                {"type": "string", "pattern": r"^(?!^[-+.]*$)[+-]?0*\d*\.?\d*$"},
            ]
        },
        [1.5, "1.5", "-0.25", "007", ".5", "1."],
        ["", "-", "+.", ".", "1.5.2", "x", None],
    ),
    "a form with conditions": Case(
        {
            "type": "object",
            "properties": {"kind": {"enum": KINDS}} | {f"of_{kind}": {} for kind in KINDS},
            "required": ["kind"],
            "allOf": [
                {
                    "if": {"properties": {"kind": {"const": kind}}},
                    "then": {"required": [f"of_{kind}"]},
                }
                for kind in KINDS
            ],
            "additionalProperties": False,
        },
        [{"kind": "kind29", "of_kind29": 1}, {"kind": "kind0", "of_kind0": [], "of_kind3": None}],
        [{"kind": "kind29"}, {"kind": "kind2", "of_kind3": 1}, {"kind": "other"}, {}],
    ),
    "scopes": Case(
        {
            "type": "array",
            "items": {"type": "string", "pattern": "^[a-z:]+$"},
            "contains": {"const": "openid"},
            "uniqueItems": True,
            "maxItems": 10,
        },
        [["openid"], ["a:b", "openid", "c"], ["openid", "openi"]],
        [[], ["a"], ["openid", "openid"], ["a", "openid", "a"]],
    ),
    "rights": Case(
        {
            "type": "array",
            "items": {"enum": [*"abcdefghijklm", "read"]},
            "contains": {"const": "read"},
            "uniqueItems": True,
        },
        [["read"], ["a", "b", "read", "m"], ["read", *"abcdefghijklm"]],
        [[], ["a"], ["read", "a", "a"], ["read", "read"], ["read", "x"]],
    ),
    "two flags": Case(
        {
            "type": "array",
            "prefixItems": [{"type": "boolean"}] * 3,
            "uniqueItems": True,
            "minItems": 2,
        },
        [[True, False], [False, True]],
        [[True], [True, True], [True, False, True], [True, False, 1]],
    ),
    "digits": Case(
        {
            "type": "array",
            "prefixItems": [{"enum": [0, 1]}, {"type": "integer", "minimum": 0, "maximum": 3}],
            "items": {"type": "integer", "minimum": 0, "maximum": 4},
            "uniqueItems": True,
        },
        [[], [1], [1, 0], [0, 3, 1, 4, 2]],
        [[2], [1, 1], [0, 3, 3], [0, 1, 2, 3, 4, 5]],
    ),
}


def _compiled(schema: dict[str, Any], **options: Any) -> Any:
    return demo().compile({"kind": "json_schema", "schema": schema, **options})


@pytest.mark.parametrize("name", CASES)
def test_what_is_allowed_can_be_written_and_nothing_else(name: str) -> None:
    schema, good, bad = CASES[name]
    compiled, validator = _compiled(schema), Draft202012Validator(schema)
    for value in good + bad:
        assert validator.is_valid(value) == (value in good), value
        assert (demo().accepted(compiled, json.dumps(value)) is None) == (value in good), value


@pytest.mark.parametrize("name", CASES)
def test_whatever_is_drawn_is_valid(name: str) -> None:
    schema = CASES[name].schema
    walk(_compiled(schema), Draft202012Validator(schema), walks=6, steps=6)


def test_exclusive_bounds_may_be_written_as_openapi_has_them() -> None:
    compiled = _compiled(
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 3}
        | {"exclusiveMaximum": False}
    )
    taken = [text for text in map(str, range(-1, 5)) if demo().accepted(compiled, text) is None]
    assert taken == ["1", "2", "3"]

"""Schemas as libraries and generators write them: enforced exactly, whatever is drawn."""

from typing import Any, NamedTuple

import pytest

from tests.grammar.random_walks import walk
from tests.grammar.schema_suite import written
from tests.grammar.test_grammar import demo
from tests.schemas import checking

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

UUID = "2eb8aa08-aa98-11ea-b4aa-73b441d16380"
# Python's letters are of all scripts, those of JSON Schema ASCII's.
ASCII = {"type": "string", "maxLength": 9, "allOf": [{"pattern": "^[ -~]*$"}]}
WORDS = {
    "a word": Case(
        ASCII | {"pattern": r"\bfoo\b"},
        ["foo", "a foo b", "-foo-"],
        ["", "afoo", "foo1", "fo o"],
    ),
    "two words": Case(
        ASCII | {"pattern": r"^\w+\b.\bb"},
        ["a.b", "ab bc"],
        ["a_b", "ab", ".b", "a.-b"],
    ),
}
FORMATS = {
    "a map by UUID": Case(
        {
            "type": "object",
            "propertyNames": {"type": "string", "format": "uuid"},
            "additionalProperties": {"type": "integer"},
        },
        [{}, {UUID: 1}],
        [{UUID: "x"}, {UUID[1:]: 1}, {"": 1}],
    ),
    "a map by date, and a total": Case(
        {
            "type": "object",
            "properties": {"total": {"type": "number"}},
            "propertyNames": {"anyOf": [{"const": "total"}, {"format": "date"}]},
            "additionalProperties": {"type": "boolean"},
            "required": ["total"],
        },
        [{"total": 1}, {"total": 0.5, "2024-02-29": True}],
        [{}, {"total": 1, "2023-02-29": True}, {"total": 1, "x": True}, {"total": True}],
    ),
    "labels": Case(
        {
            "type": "object",
            "properties": {"app": {"const": "x"}},
            "propertyNames": {
                "pattern": "^([a-z0-9.-]+/)?[A-Za-z0-9][A-Za-z0-9_.-]*$",
                "maxLength": 316,
            },
            "additionalProperties": {"type": "string", "maxLength": 3},
        },
        [{}, {"app": "x", "a.b/c": "d"}, {"n" * 316: ""}],
        [{"app": "y"}, {"n" * 317: ""}, {"/a": "d"}, {"a": "long"}],
    ),
    "names by several patterns": Case(
        {
            "type": "object",
            "propertyNames": {
                "allOf": [{"pattern": f"^[{letters}]*$"} for letters in ("a-z-", "b-z-", "a-y-")],
                "not": {"pattern": "--"},
                "maxLength": 63,
            },
        },
        [{}, {"b-c": 1}],
        [{"a": 1}, {"b--c": 1}, {"z": 1}, {"b" * 64: 1}],
    ),
    "letters of any script": Case(
        {"type": "object", "patternProperties": {"^[\u00c0-\u024f]+$": {"type": "integer"}}},
        [{"é": 1, "e": "x"}, {"éx": "y"}],
        [{"é": "x"}, {"éà": None}],
    ),
    "one kind of address": Case(
        {"oneOf": [{"format": "ipv4"}, {"format": "ipv6"}], "type": "string"},
        ["127.0.0.1", "::1"],
        ["", "localhost", "1.2.3"],
    ),
    "a host by name": Case(
        {"oneOf": [{"format": "ipv4"}, {"format": "hostname"}], "type": "string"},
        ["localhost", "a.b"],
        ["127.0.0.1", 5],
    ),
    "not an identifier": Case(
        {"type": "string", "not": {"format": "uuid"}, "maxLength": 36},
        ["", UUID[1:], "x" * 36],
        [UUID, "x" * 37],
    ),
    "short addresses": Case(
        {
            "type": "array",
            "items": {"type": "string", "format": "email", "maxLength": 4},
            "uniqueItems": True,
        },
        [[], ["a@b"], ["a@b", "b@b", "aa@b"]],
        [["a@b", "a@b"], ["aaa@b"], ["a"]],
    ),
    "pages": Case(
        {
            "type": "array",
            "items": {"type": "string", "format": "uri", "pattern": "^https://"},
            "uniqueItems": True,
            "maxItems": 3,
        },
        [["https://a", "https://b"]],
        [["https://a", "https://a"], ["http://a"], ["https:/a"]],
    ),
}
NUMBERS = {
    "multiples of one of two": Case(
        {"oneOf": [{"type": "number", "multipleOf": 5}, {"type": "number", "multipleOf": 3}]},
        [5, 10, 9, -3, 3000003, 33],
        [0, 15, 2, -45, 7.5, "5"],
    ),
    "no multiple": Case(
        {"type": "integer", "minimum": 1, "maximum": 1000, "not": {"multipleOf": 3}},
        [1, 2, 1000, 500],
        [3, 999, 0, 1001, -1, 1.5],
    ),
    "an odd number": Case(
        {"type": "integer", "not": {"multipleOf": 2}}, [1, -7, 12345], [0, 2, -10, 0.5]
    ),
    "no multiple, whole or not": Case(
        {"type": "number", "minimum": 0, "not": {"multipleOf": 7}},
        [1, 6.5, 20, 7.25],
        [0, 7, 7000, -1],
    ),
    "leap years": Case(
        {
            "type": "integer",
            "minimum": 1900,
            "maximum": 2100,
            "multipleOf": 4,
            "not": {"multipleOf": 100, "not": {"multipleOf": 400}},
        },
        [1904, 2000, 2024],
        [1900, 2100, 2023, 2400],
    ),
    "two of three": Case(
        {
            "type": "array",
            "items": {"type": "integer", "minimum": 0, "maximum": 4, "not": {"multipleOf": 2}},
            "uniqueItems": True,
        },
        [[], [3, 1]],
        [[0], [1, 1], [1, 3, 1]],
    ),
    "none left": Case(
        {
            "type": "object",
            "properties": {
                "a": {"type": "integer", "minimum": 8, "maximum": 9}
                | {"allOf": [{"not": {"multipleOf": 2}}, {"not": {"multipleOf": 3}}]}
            },
            "additionalProperties": False,
        },
        [{}],
        [{"a": 8}, {"a": 9}],
    ),
    "whole minutes": Case(
        {"type": "integer", "multipleOf": 60_000, "minimum": 1, "maximum": 10**9},
        [60_000, 3_000_000, 999_960_000],
        [0, 1, 6_000, 90_000, 100_000, 10**9, 1_020_000_000],
    ),
    "no round number": Case(
        {"type": "integer", "not": {"multipleOf": 100}}, [1, 50, -1010], [0, 100, -2000]
    ),
    "a number of 64 bits": Case(
        {"type": "number", "minimum": -(2**63), "maximum": 2**63 - 1},
        [0, 2**63 - 1, -(2**63), 0.5],
        [2**63, -(2**63) - 1, 1e30],
    ),
}
CASES |= WORDS | FORMATS | NUMBERS


def _compiled(schema: dict[str, Any], **options: Any) -> Any:
    return demo().compile({"kind": "json_schema", "schema": schema, **options})


@pytest.mark.parametrize("name", CASES)
def test_grammar_allows_exactly_the_valid_values(name: str) -> None:
    schema, good, bad = CASES[name]
    compiled, validator = _compiled(schema), checking.validator(schema)
    for value, allowed in [*((value, True) for value in good), *((value, False) for value in bad)]:
        assert validator.is_valid(value) == allowed, value
        assert (demo().accepted(compiled, written(value)) is None) == allowed, value


@pytest.mark.parametrize("name", CASES)
def test_whatever_is_drawn_is_valid(name: str) -> None:
    schema = CASES[name].schema
    walk(_compiled(schema), checking.validator(schema), walks=6, steps=6)


def test_exclusive_bounds_may_be_written_as_openapi_has_them() -> None:
    compiled = _compiled(
        {"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 3}
        | {"exclusiveMaximum": False}
    )
    taken = [text for text in map(str, range(-1, 5)) if demo().accepted(compiled, text) is None]
    assert taken == ["1", "2", "3"]

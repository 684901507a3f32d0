"""Schemas that the normal form makes too much of: enforced as they came, or refused as before."""

import json
from typing import Any

import pytest

from pyengine.grammar import json_schema
from tests.answers import matches

MANY = range(1100)
TAGGED = [
    {"type": "object", "properties": {"k": {"const": f"v{at}"}}, "required": ["k"]} for at in MANY
]
CASES: dict[str, tuple[Any, list[Any], list[Any]]] = {
    "objects": ({"oneOf": TAGGED}, [{"k": "v7"}, {"k": "v1099"}], [{"k": "v1100"}, {}]),
    "texts": (
        {"anyOf": [{"type": "string", "pattern": rf"^a{at}-\d$"} for at in MANY]},
        ["a1000-7", "a0-0"],
        # A digit of Unicode, but not of ECMA-262's regexes.
        ["a1000-\u0667", "a1100-7", "a7"],
    ),
    "arrays": (
        {
            "anyOf": [
                {"type": "array", "prefixItems": [{"const": at}], "minItems": 1} for at in MANY
            ]
        },
        [[7], [1099, "x"]],
        [[], [1100]],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_more_cases_than_the_normal_form_keeps_are_enforced(name: str) -> None:
    schema, good, bad = CASES[name]
    grammar = json_schema(schema)
    for value in good:
        assert matches(grammar, json.dumps(value, ensure_ascii=False))
    for value in bad:
        assert not matches(grammar, json.dumps(value, ensure_ascii=False))


def test_what_neither_enforces_is_refused_by_name() -> None:
    """An old draft's reference has no siblings, which the compiler alone would read."""
    draft = "http://json-schema.org/draft-07/schema#"
    options = [*CASES["texts"][0]["anyOf"], {"$ref": "#/definitions/a", "minLength": 3}]
    old = {"$schema": draft, "definitions": {"a": {"type": "string"}}, "anyOf": options}
    for schema in ({"anyOf": [*TAGGED, {"not": {"minLength": 3}}]}, old):
        with pytest.raises(ValueError, match="more than 1000 cases"):
            matches(json_schema(schema), "{}")

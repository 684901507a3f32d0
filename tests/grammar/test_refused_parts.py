"""What is refused as a whole names the part of the schema that it is about, and what to do."""

from typing import Any

import pytest

from tests.grammar.test_grammar import demo

# No automaton can tell within its limits whether any string matches all of them.
HARD = {
    "type": "string",
    "allOf": [{"pattern": f".*{letter}.{{30}}$"} for letter in "abcdefgh"],
}
SAID = (
    "cannot be compiled: its patterns, formats and lengths are too much together; "
    "write fewer or simpler ones, or shorter lengths"
)


def _described(schema: Any, **options: Any) -> dict[str, Any]:
    return {"kind": "json_schema", "schema": schema, **options}


def _refusal(description: dict[str, Any]) -> str:
    with pytest.raises(ValueError, match="cannot be compiled") as refused:
        demo().compile(description)
    return str(refused.value)


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        # Only together are they too much.
        (HARD, "#"),
        (
            {"properties": {"a": {"type": "null"}, "b/c": {"items": HARD}}},
            "#/properties/b~1c/items",
        ),
        (
            {"prefixItems": [{"type": "null"}, {"anyOf": [{"type": "null"}, HARD]}]},
            "#/prefixItems/1/anyOf/1",
        ),
        ({"$defs": {"h": HARD}, "properties": {"a": {"$ref": "#/$defs/h"}}}, "#/$defs/h"),
    ],
)
def test_the_deepest_part_is_named(schema: Any, path: str) -> None:
    assert _refusal(_described(schema)) == f"the schema at {path} {SAID}"


def test_a_schema_among_others_is_named() -> None:
    good, bad = (
        _described({"type": "null"}, name="tool 'f'"),
        _described({"items": HARD}, name="tool 'g'"),
    )
    separator = {"kind": "text", "text": ";"}
    descriptions: list[dict[str, Any]] = [
        {"kind": "sequence", "parts": [good, bad]},
        {"kind": "any_order", "required": [good], "optional": [bad], "separator": separator},
        {"kind": "repeat", "part": {"kind": "any_of", "options": [good, bad]}, "min": 1},
        {"kind": "optional", "part": bad},
    ]
    for description in descriptions:
        assert _refusal(description) == f"tool 'g': the schema at #/items {SAID}"


@pytest.mark.slow
def test_too_many_rules_name_the_part_that_needs_them() -> None:
    """Each key has two rules, and its own: eleven thousand of them in one object."""
    names = [f"k{at}" for at in range(4_000)]
    each = {"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 2}
    wide = {"type": "object", "properties": dict.fromkeys(names, each), "required": names}
    schema = {"type": "object", "properties": {"a": {"type": "null"}, "b": wide}}
    said = "the schema at #/properties/b cannot be compiled: it needs more than 20000 rules"
    assert _refusal(_described(schema)).startswith(said)

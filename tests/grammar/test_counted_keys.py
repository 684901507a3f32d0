"""Objects of known keys, of which at least or at most so many come."""

import itertools
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.grammar.random_walks import walk
from tests.grammar.test_grammar import demo

INTEGER = {"type": "integer"}


def _object(keys: int, **more: Any) -> dict[str, Any]:
    properties = {f"k{at}": INTEGER for at in range(keys)}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _compiled(schema: Any, key_order: str) -> Any:
    return demo().compile({"kind": "json_schema", "schema": schema, "key_order": key_order})


COUNTS: list[dict[str, Any]] = [
    {"minProperties": 5},
    {"maxProperties": 4},
    {"minProperties": 3, "maxProperties": 3},
    {"minProperties": 6, "required": ["k4", "k9"]},
    {"maxProperties": 3, "required": ["k1", "k8"]},
    {"minProperties": 4, "maxProperties": 5, "required": ["k0", "k5"]},
    {"maxProperties": 2, "required": ["k3", "k7"]},
    {"minProperties": 11},
    {"minProperties": 1},
]


@pytest.mark.parametrize("key_order", ["schema", "any"])
@pytest.mark.parametrize("more", COUNTS, ids=json.dumps)
def test_grammar_allows_exactly_the_valid_counts(more: dict[str, Any], key_order: str) -> None:
    schema = _object(11, **more)
    compiled, validator = _compiled(schema, key_order), Draft202012Validator(schema)
    chance = random.Random(3)
    subsets = [s for n in range(12) for s in itertools.combinations(range(11), n)]
    for some in chance.sample(subsets, 300):
        keys = [f"k{at}" for at in some]
        if key_order == "any":
            chance.shuffle(keys)
        value = dict.fromkeys(keys, 1)
        taken = demo().accepted(compiled, json.dumps(value)) is None
        assert taken == validator.is_valid(value), value


@pytest.mark.parametrize("key_order", ["schema", "any"])
@pytest.mark.parametrize(
    "schema",
    [
        *(_object(11, **more) for more in COUNTS),
        _object(50, minProperties=20, maxProperties=30),
        _object(200, minProperties=1),
        {"type": "array", "items": _object(12, minProperties=6), "minItems": 2},
        {"anyOf": [_object(20, maxProperties=10), _object(9, minProperties=5)]},
    ],
    ids=lambda schema: json.dumps(schema)[-60:],
)
def test_no_way_through_the_masks_comes_to_a_dead_end(schema: Any, key_order: str) -> None:
    if key_order == "any" and len(schema.get("properties", ())) > 60:
        pytest.skip("in any order a parameter has a bit for each key")
    walk(_compiled(schema, key_order), Draft202012Validator(schema), 4, 12)


def test_one_of_many_keys_must_come() -> None:
    compiled = _compiled(_object(200, minProperties=1), "schema")
    for value, fits in (
        ({}, False),
        ({"k0": 1}, True),
        ({"k199": 1}, True),
        ({"k3": 1, "k4": 1}, True),
    ):
        assert (demo().accepted(compiled, json.dumps(value)) is None) == fits, value


def test_keys_without_a_value_do_not_count() -> None:
    """Those that can only hold more of the same for ever."""
    endless = {f"e{at}": {"$ref": "#/$defs/endless"} for at in range(9)}
    schema: dict[str, Any] = {
        "$defs": {
            "endless": {
                "type": "object",
                "properties": endless,
                "minProperties": 2,
                "additionalProperties": False,
            }
        },
        "anyOf": [{"$ref": "#/$defs/endless"}, INTEGER],
    }
    compiled = _compiled(schema, "schema")
    assert demo().accepted(compiled, "1") is None
    assert demo().accepted(compiled, '{"e0": 1}') == 0

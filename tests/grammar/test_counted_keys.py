"""Objects of known keys, of which at least or at most so many come."""

import itertools
import json
import random
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.grammar.test_grammar import demo

INTEGER = {"type": "integer"}


def _object(keys: int, **more: Any) -> dict[str, Any]:
    properties = {f"k{at}": INTEGER for at in range(keys)}
    return {"type": "object", "properties": properties, "additionalProperties": False, **more}


def _compiled(schema: Any, key_order: str) -> Any:
    return demo().compile({"kind": "json_schema", "schema": schema, "key_order": key_order})


COUNTS: list[dict[str, Any]] = [
    {"minProperties": 3, "maxProperties": 3},
    {"minProperties": 6, "required": ["k4", "k9"]},
    {"maxProperties": 3, "required": ["k1", "k8"]},
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


@pytest.mark.parametrize(
    ("schema", "key_order"),
    [
        (_object(11, minProperties=5), "schema"),
        (_object(11, maxProperties=4), "any"),
        # Keys that the schema does not name come between the others then.
        ({**_object(2, maxProperties=3, required=["k0"]), "additionalProperties": INTEGER}, "any"),
    ],
)
def test_too_many_ways_to_choose_the_keys_are_refused_by_name(
    schema: dict[str, Any], key_order: str
) -> None:
    with pytest.raises(ValueError, match=r"'m..Properties' at # cannot be enforced"):
        _compiled(schema, key_order)


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

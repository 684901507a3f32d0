"""Arrays of different items whose values are free: strings, numbers and both."""

import itertools
import json
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.grammar.random_walks import walk
from tests.grammar.test_grammar import demo

STRINGS = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}


def _described(schema: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"kind": "json_schema", "schema": schema, **options}


def _taken(compiled: Any, text: str) -> bool:
    return demo().accepted(compiled, text) is None


@pytest.mark.parametrize(
    "whitespace",
    ["flexible", *(pytest.param(w, marks=pytest.mark.slow) for w in ("single_line", "compact"))],
)
def test_no_value_comes_twice_however_it_is_written(whitespace: str) -> None:
    items = {"type": ["string", "number", "null"]}
    schema = {"type": "array", "items": items, "uniqueItems": True}
    compiled = demo().compile(_described(schema, whitespace=whitespace))
    comma = "," if whitespace == "compact" else ", "
    values = ['"a"', '"ab"', '"\\u0061"', '""', '"1"', "1", "1.0", "10", "-0", "0.0", "null", '"é"']
    validator = Draft202012Validator(schema)
    for count in range(4):
        for texts in itertools.product(values, repeat=count):
            text = f"[{comma.join(texts)}]"
            assert _taken(compiled, text) == validator.is_valid(json.loads(text)), text


def test_numbers_are_equal_by_value_however_large_their_exponents_are() -> None:
    compiled = demo().compile(_described(STRINGS | {"items": {"type": "number"}}))
    huge = "1e99999999999999999999"
    for other, same in [
        ("10e99999999999999999998", True),
        ("0.001E+100000000000000000002", True),
        ("1e99999999999999999998", False),
        ("-1e99999999999999999999", False),
        ("1e-99999999999999999999", False),
    ]:
        assert _taken(compiled, f"[{huge}, {other}]") == (not same), other


def test_a_value_is_free_again_in_another_array() -> None:
    schema = {
        "type": "object",
        "properties": {"a": STRINGS, "b": {"type": "array", "items": STRINGS}, "c": {}},
        "required": ["a", "b", "c"],
    }
    compiled = demo().compile(_described(schema))
    assert _taken(compiled, '{"a": ["x", "y"], "b": [["x"], [], ["y", "x"]], "c": ["x", "x"]}')
    assert not _taken(compiled, '{"a": ["x", "y"], "b": [["x"], ["y", "x", "y"]], "c": 1}')
    assert not _taken(compiled, '{"a": ["x", "x"], "b": [], "c": 1}')


def test_another_case_of_the_schema_takes_what_repeats() -> None:
    numbers = {"type": "array", "items": {"type": "integer"}, "minItems": 3}
    either = {"anyOf": [STRINGS | {"items": {"type": ["string", "integer"]}}, numbers]}
    compiled = demo().compile(_described(either))
    for text, valid in [
        ("[1, 2]", True),
        ("[1, 1]", False),
        ("[1, 1, 2]", True),
        ('[1, "a", 2]', True),
        ('[1, 1, "a"]', False),
        ('["a", "b", "a"]', False),
    ]:
        assert _taken(compiled, text) == valid, text


@pytest.mark.parametrize(
    "items",
    [
        {"type": "integer", "minimum": 0, "maximum": 99},
        {"type": "string", "pattern": "^[a-c]{0,4}$"},
        {"enum": [f"{'ab'[at % 2]}{at}" for at in range(70)]},
        {"type": "string", "maxLength": 1},
        {"type": "string", "format": "date"},
    ],
)
def test_an_answer_never_comes_to_a_dead_end(items: dict[str, Any]) -> None:
    schema = {"type": "array", "items": items, "uniqueItems": True, "minItems": 12}
    formats = Draft202012Validator.FORMAT_CHECKER
    validator = Draft202012Validator(schema, format_checker=formats)
    walk(demo().compile(_described(schema)), validator, walks=4, steps=40)


def test_a_closing_writes_the_shortest_values_that_differ() -> None:
    state = demo().compile(_described(STRINGS | {"minItems": 5})).start()
    assert all(map(state.advance, demo().ids('["ab", "", "a')))
    closing = demo().tokenizer.decode(state.closing_tokens() or [])
    values = json.loads('["ab", "", "a' + closing)
    assert len(set(values)) == len(values) == 5
    assert len(closing) == len('", "b", "c"]')
    state = demo().compile(_described(STRINGS | {"minItems": 30})).start()
    values = json.loads(demo().tokenizer.decode(state.closing_tokens() or []))
    assert len(set(values)) == len(values) == 30
    assert {len(value) for value in values} == {0, 1}


def test_answers_share_masks_until_a_value_may_repeat() -> None:
    compiled = demo().compile(_described(STRINGS))

    def mask(text: str) -> frozenset[int]:
        state = compiled.start()
        assert all(map(state.advance, demo().ids(text)))
        return frozenset(demo().allowed(state))

    assert mask('["ab", "x') == mask('["cd", "x') == mask('["x')
    quote = demo().ids('"')[0]
    assert mask('["ab", "a') == mask('["cd", "a')
    assert quote in mask('["ab", "a')
    assert quote not in mask('["ab", "ab')


def test_items_that_cannot_be_remembered_are_refused_by_name() -> None:
    # The second item may be out of values.
    array = {"prefixItems": [{"type": "boolean"}, {"const": True}], "minItems": 2, "items": {}}
    schema = {"type": "object", "properties": {"a": STRINGS | array}}
    with pytest.raises(ValueError, match="'uniqueItems' at #/properties/a cannot be enforced"):
        demo().compile(_described(schema))


def test_fewer_values_than_items_leave_no_array() -> None:
    short = STRINGS | {"items": {"type": "boolean"}, "minItems": 3}
    with pytest.raises(ValueError, match="the schema allows no value"):
        demo().compile(_described(short))

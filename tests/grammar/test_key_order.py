"""``key_order: any``: the keys of objects in every order, each once, and the schema kept."""

import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.grammar.schema_suite import Accepts, RefusedError, read, run, written
from tests.grammar.test_grammar import demo
from tests.grammar.test_schema_suite import LEAST_ACCEPTED, Engine
from tests.reference import SCHEMA_SUITE, fetched

POINT: dict[str, Any] = {
    "type": "object",
    "properties": {"x": {"type": "null"}, "y": {"type": "boolean"}},
    "required": ["x", "y"],
    "additionalProperties": False,
}
ORDER = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "string"}, "c": POINT},
    "required": ["a", "c"],
    "additionalProperties": False,
}
VALUE: dict[str, Any] = {"a": 1, "b": "two", "c": {"x": None, "y": True}}
SEPARATORS = {"single_line": (", ", ": "), "compact": (",", ":"), "flexible": (" ,\n", " : ")}


def accepts(schema: Any, text: str, **options: Any) -> bool:
    options = {"key_order": "any", **options}
    grammar = demo().compile({"kind": "json_schema", "schema": schema, **options})
    return demo().accepted(grammar, text) is None


def reordered(value: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The value with each choice and order of its keys."""
    for count in range(len(value) + 1):
        for keys in itertools.permutations(value, count):
            yield {key: value[key] for key in keys}


@pytest.mark.parametrize("whitespace", SEPARATORS)
def test_every_order_is_taken_and_required_keys_are_kept(whitespace: str) -> None:
    separators = SEPARATORS[whitespace]
    for value in reordered(VALUE):
        for point in reordered(POINT["properties"]) if "c" in value else [{}]:
            inner = {key: VALUE["c"][key] for key in point}
            made = value | ({"c": inner} if "c" in value else {})
            valid = value.keys() >= {"a", "c"} and len(inner) == 2
            text = json.dumps(made, separators=separators)
            assert accepts(ORDER, text, whitespace=whitespace) == valid, text


def test_a_schema_orders_keys_where_nothing_else_is_said() -> None:
    kept, turned = '{"a": 1, "c": {"x": null, "y": true}}', '{"c": {"x": null, "y": true}, "a": 1}'
    for options in ({"key_order": "schema"}, {}):
        assert accepts(ORDER, kept, **{"key_order": "schema"} | options)
        assert not accepts(ORDER, turned, **{"key_order": "schema"} | options)


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        pytest.param(
            {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]},
            ['{"z": [1], "a": 1}', '{"a": 1, "z": {"a": "b"}}', '{"z": 1, "a": 2, "z": 3}'],
            ['{"z": 1}', '{"a": "x"}', '{"a": 1, "a": 2}', '{"\\u0061": "x", "a": 1}'],
            id="others-between",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "patternProperties": {"^x-": {"type": "integer"}},
                "required": ["a"],
            },
            ['{"x-1": 2, "a": 1}', '{"y": "s", "a": 1, "x-": 3}'],
            ['{"x-1": "s", "a": 1}', '{"a": 2}'],
            id="patterns",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"a": {"const": 1}},
                "minProperties": 1,
                "additionalProperties": {"type": "boolean"},
            },
            ['{"a": 1}', '{"x": true, "a": 1}', '{"x": true, "y": true}'],
            ["{}", '{"x": 2}'],
            id="one-of-any",
        ),
        pytest.param(
            {
                "type": "object",
                "properties": {"a": {}, "b": {}, "c": {}},
                "minProperties": 2,
                "additionalProperties": False,
            },
            ['{"c": 1, "a": 2}', '{"b": 1, "c": [], "a": 2}'],
            ['{"c": 1}', "{}"],
            id="counted",
        ),
        pytest.param(
            {"type": "array", "prefixItems": [POINT], "items": POINT, "minItems": 1, "maxItems": 2},
            ['[{"y": true, "x": null}]', '[{"x": null, "y": true}, {"y": false, "x": null}]'],
            ["[]", '[{"y": true}]', str([{}] * 3)],
            id="arrays",
        ),
        pytest.param(
            {
                "$defs": {
                    "node": {
                        "type": "object",
                        "properties": {
                            "value": {"type": "integer"},
                            "below": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                        },
                        "required": ["value", "below"],
                        "additionalProperties": False,
                    }
                },
                "$ref": "#/$defs/node",
            },
            ['{"below": [{"value": 1, "below": []}, {"below": [], "value": 2}], "value": 0}'],
            ['{"below": [{"below": []}], "value": 0}'],
            id="recursion",
        ),
    ],
)
def test_other_keywords_are_enforced_in_any_order(
    schema: Any, good: list[str], bad: list[str]
) -> None:
    assert all(accepts(schema, text) for text in good)
    assert not any(accepts(schema, text) for text in bad)


def test_more_keys_than_any_order_has_room_for_are_refused_or_ordered() -> None:
    names = [f"k{at}" for at in range(70)]
    inner = {"type": "object", "properties": {name: {"type": "null"} for name in names}}
    schema = {"type": "object", "properties": {"a": inner, "b": {"type": "integer"}}}
    description = {"kind": "json_schema", "schema": schema, "key_order": "any"}
    said = "'properties' at #/properties/a: an object has 70; in any key order the limit is 64"
    with pytest.raises(ValueError, match=said):
        demo().compile(description)
    grammar = demo().compile(description | {"unenforceable": "ignore"})
    assert grammar.warnings == [f"{said}; its keys come in the order of the schema"]
    kept = dict.fromkeys(names)
    turned = dict.fromkeys(reversed(names))
    assert demo().accepted(grammar, json.dumps({"a": kept, "b": 1})) is None
    # Objects beside it keep to no order.
    assert demo().accepted(grammar, json.dumps({"b": 1, "a": kept})) is None
    assert demo().accepted(grammar, json.dumps({"b": 1, "a": turned})) is not None


def test_an_answer_is_closed_whatever_came_first() -> None:
    state = demo().compile({"kind": "json_schema", "schema": ORDER, "key_order": "any"}).start()
    assert all(map(state.advance, demo().ids('{"b": "so far')))
    closing = demo().tokenizer.decode(state.closing_tokens() or [])
    value = json.loads('{"b": "so far' + closing)
    assert next(iter(value)) == "b"
    assert value.keys() == VALUE.keys()


@pytest.mark.parametrize("separator", [None, {"kind": "text", "text": ","}])
def test_parts_in_any_order(separator: Any) -> None:
    def part(name: str) -> Any:
        return {"kind": "regex", "pattern": f"{name}[0-9]+"}

    grammar = {"kind": "any_order", "required": [part("a"), part("b")], "separator": separator}
    grammar["optional"] = [part("c")]
    compiled = demo().compile(grammar)
    comma = "," if separator else ""
    for count in range(5):
        for parts in itertools.product(["a10", "b2", "c33"], repeat=count):
            valid = set(parts) >= {"a10", "b2"} and len(set(parts)) == len(parts)
            assert (demo().accepted(compiled, comma.join(parts)) is None) == valid, parts
    again = demo().compile({"kind": "sequence", "parts": [grammar, part("d")]})
    assert demo().accepted(again, comma.join(["b1", "a1"]) + "d5") is None
    with pytest.raises(ValueError, match="in any order at most 64 parts may come, not 66"):
        demo().compile(grammar | {"required": [part("a")] * 65})
    free = {"kind": "sequence", "parts": [{"kind": "free_text", "until": ["a"]}, grammar]}
    with pytest.raises(ValueError, match="put a text between them"):
        demo().compile(free)


KEYS = {f"key{at}": {"type": "integer"} for at in range(60)}
VALUES = ["a", "bb", "ccc", 1, 22, 333]


@pytest.mark.parametrize(
    ("schema", "begun", "least"),
    [
        ({"properties": KEYS, "required": list(KEYS)}, '{"z": 1', 10 * 9 + 50 * 10 + 60 * 2 + 1),
        ({"properties": KEYS, "required": list(KEYS)}, '{"key7": 1, "', 9 * 9 + 50 * 10 + 58 * 2),
        (
            {
                "properties": {"a": {"properties": KEYS, "required": ["key0", "key1"]}, "b": {}},
                "patternProperties": {"^x": {"type": "boolean"}},
                "required": ["a", "b"],
            },
            '{"x": true, "a": {"y": [], "key5": 1',
            len(', "key0": 0, "key1": 0}, "b": 0}'),
        ),
        (
            {"items": {"enum": VALUES}, "uniqueItems": True, "minItems": 4, "maxItems": 5},
            '["ccc", 333',
            len(", 1, 22]"),
        ),
    ],
)
def test_a_closing_is_the_shortest(schema: dict[str, Any], begun: str, least: int) -> None:
    """Past keys that the schema does not name, however many orders the others have."""
    whole = {"type": "array" if "items" in schema else "object", **schema}
    description = {"kind": "json_schema", "schema": whole, "key_order": "any"}
    state = demo().compile(description).start()
    assert all(map(state.advance, demo().ids(begun)))
    closing = demo().tokenizer.decode(state.closing_tokens() or [])
    assert len(closing) == least
    assert Draft202012Validator(whole).is_valid(json.loads(begun + closing))


def test_a_required_key_is_not_passed_over() -> None:
    """What is written here in the schema's order, because of a number that is not whole."""
    fraction = {"type": "number", "not": {"multipleOf": 1}}
    schema = {"properties": {"a": {}, "b": fraction, "c": {}, "d": {}}, "required": ["b", "d"]}
    description = {"kind": "json_schema", "schema": {"type": "object", **schema}}
    compiled = demo().compile(description)
    for begun, taken in [('{"a": 1, "b": 0.5, "d": 1, "z": 1', True), ('{"c": 1', False)]:
        state = compiled.start()
        assert all(map(state.advance, demo().ids(begun))) == taken
    for begun in ('{"z', '{"a": 1, "c', '{"b": 0.5, "c": 1, "z', '{"b": 0.5, "z'):
        state = compiled.start()
        assert not all(map(state.advance, demo().ids(begun))), begun


def test_many_keys_beside_a_number_that_is_not_whole() -> None:
    """More than the parser has bits for, in the schema's order."""
    keys: dict[str, Any] = {f"key{at}": {"type": "integer"} for at in range(100)}
    keys["part"] = {"type": "number", "not": {"multipleOf": 1}}
    schema = {"type": "object", "properties": keys, "required": ["key3", "key80"]}
    strict = demo().compile(
        {"kind": "json_schema", "schema": schema | {"additionalProperties": False}}
    )
    other = {"^z": {"type": "integer"}}
    loose = demo().compile({"kind": "json_schema", "schema": schema | {"patternProperties": other}})
    for text, valid in [
        ('{"key3": 1, "key80": 2}', (True, True)),
        ('{"key0": 0, "key3": 1, "key80": 2, "key99": 3, "part": 0.5}', (True, True)),
        ('{"key3": 1, "key80": 2, "z1": 1, "z2": 2}', (False, True)),
        ('{"key3": 1, "key80": 2, "part": 5}', (False, False)),
        ('{"key80": 2}', (False, False)),
        ('{"key3": 1}', (False, False)),
        ('{"key3": 1, "z": 1, "key80": 2}', (False, False)),
        ('{"key80": 2, "key3": 1}', (False, False)),
    ]:
        accepted = tuple(demo().accepted(compiled, text) is None for compiled in (strict, loose))
        assert accepted == valid, text


def test_many_keys_are_taken_and_too_many_refused_by_name() -> None:
    many = {f"key{at}": {"type": "integer"} for at in range(64)}
    schema: dict[str, Any] = {"type": "object", "properties": many, "required": list(many)}
    schema["additionalProperties"] = False
    backwards = json.dumps(dict.fromkeys(reversed(many), 1))
    assert accepts(schema, backwards)
    assert not accepts(schema, backwards.replace("key7", "key8"))
    schema["properties"] = many | {"more": {}}
    with pytest.raises(
        ValueError, match="'properties' at #: an object has 65; in any key order the limit is 64"
    ):
        accepts(schema, backwards)


@pytest.mark.slow
def test_the_suite_is_kept_in_any_order() -> None:
    """The engine takes every valid instance in the order in which the suite writes it."""
    engine = Engine(fetched("tokenizers/qwen2.json"))

    def compile_schema(schema: Any) -> Accepts:
        try:
            grammar = engine.compiled(schema, key_order="any")
        except ValueError as error:
            raise RefusedError(str(error)) from None
        return lambda text: engine.accepts(grammar, text)

    groups = read(SCHEMA_SUITE)
    outcome = run(groups, compile_schema)
    assert outcome.wrong == []
    assert outcome.accepted >= LEAST_ACCEPTED
    for group in groups:
        # Formats narrow strings that are valid all the same.
        if group.file == "format":
            continue
        try:
            taken = compile_schema(group.schema)
        except RefusedError:
            continue
        for name, instance, valid in group.tests:
            assert taken(written(instance)) == valid, (group.description, name)

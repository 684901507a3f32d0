"""Arrays of different items that are arrays and objects."""

import itertools
import json
import random
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from pyengine import AsyncEngine
from pyengine.http.serving.server import HttpServer
from tests.grammar.random_walks import walk
from tests.grammar.test_grammar import demo

COMMAS = {"single_line": ", ", "compact": ",", "flexible": " ,\n"}


def _unique(items: Any, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "uniqueItems": True, **more}


def _object(required: list[str], **properties: Any) -> dict[str, Any]:
    kept = {"properties": properties, "required": required, "additionalProperties": False}
    return {"type": "object", **kept}


def _compiled(schema: Any, **options: str) -> Any:
    return demo().compile({"kind": "json_schema", "schema": schema, **options})


def _taken(compiled: Any, text: str) -> bool:
    return demo().accepted(compiled, text) is None


def _whole(text: str) -> int:
    return int(float(text))


@pytest.mark.parametrize(
    "whitespace",
    [pytest.param(w, marks=() if w == "flexible" else pytest.mark.slow) for w in COMMAS],
)
def test_no_value_comes_twice_however_it_is_written(whitespace: str) -> None:
    schema = _unique({})
    compiled, comma = _compiled(schema, whitespace=whitespace), COMMAS[whitespace]
    colon = ":" if whitespace == "compact" else ": "
    values = ["[]", "[[]]", "{}", "1", "[1]", "[1.0]", '["1"]', '"[1]"', "true", "[true]"]
    members = [f'"a"{colon}1{comma}"b"{colon}[]', f'"b"{colon}[]{comma}"\\u0061"{colon}1e0']
    members += [f'"a"{colon}1', f'"a"{colon}2{comma}"a"{colon}1', f'"a"{colon}"1"']
    values += [f"{{{members}}}" for members in members]
    # The validator takes [true] for [1] at times, so values are compared as they are written alike.
    said = [json.dumps(json.loads(text, parse_float=_whole), sort_keys=True) for text in values]
    for count in range(4):
        for places in itertools.product(range(len(values)), repeat=count):
            text = f"[{comma.join(values[at] for at in places)}]"
            differ = len({said[at] for at in places}) == count
            assert _taken(compiled, text) == differ, text


def _value(draw: random.Random, deep: int) -> Any:
    kind = draw.randrange(6 if deep else 4)
    if kind < 4:
        return [draw.randrange(2), draw.choice(["", "a", "ab"]), None, 2.5][kind]
    count = draw.randrange(3)
    if kind == 4:
        return [_value(draw, deep - 1) for _ in range(count)]
    return {draw.choice("ab"): _value(draw, deep - 1) for _ in range(count)}


def test_a_validator_says_the_same() -> None:
    """Different items in items that differ, and in those that need not."""
    free = {"type": "object", "properties": {"x": _unique({}), "y": {"type": "array"}}}
    schemas = [
        _unique(_unique({})),
        _unique({"anyOf": [_unique({}), free]}),
        {"items": _unique({})},
    ]
    draw, taken = random.Random(7), 0
    for schema in schemas:
        compiled, validator = _compiled(schema), Draft202012Validator(schema)
        for _ in range(300):
            value = [_value(draw, 2) for _ in range(draw.randrange(2, 5))]
            value = [[item] if draw.random() < 0.5 else {"x": [item, 1]} for item in value]
            valid = validator.is_valid(value)
            assert _taken(compiled, json.dumps(value)) == valid, value
            taken += valid
    assert 200 < taken < 800


def test_another_case_of_the_schema_takes_what_repeats() -> None:
    pairs = {"type": "array", "items": {"type": "array", "items": {"type": "integer"}}}
    compiled = _compiled({"anyOf": [_unique({"type": "array"}), pairs | {"minItems": 3}]})
    for text, valid in [
        ("[[1, 1], [1, 2]]", True),
        ("[[1], [1]]", False),
        ("[[1], [1], [2]]", True),
        ('[[1], ["a"], [2]]', True),
        ('[[1], [1], ["a"]]', False),
    ]:
        assert _taken(compiled, text) == valid, text
    inner = {"anyOf": [_unique({}), {"type": "array", "maxItems": 2}]}
    compiled = _compiled(_unique(inner))
    for text, valid in [
        ("[[1, 1], [1]]", True),
        ("[[1, 1], [1, 1]]", False),
        ("[[1, 1, 2]]", False),
        ("[[1, 1], [1, 2, 3]]", True),
        ("[[1, 2, 3], [1, 2, 3]]", False),
    ]:
        assert _taken(compiled, text) == valid, text


def test_the_first_items_may_have_schemas_of_their_own() -> None:
    first = [{"type": "integer"}, {"type": "object"}]
    schema = _unique({"type": ["integer", "object"]}, prefixItems=first, minItems=1)
    compiled, validator = _compiled(schema), Draft202012Validator(schema)
    for text in [
        "[1]",
        "[1, {}]",
        "[1, {}, 1]",
        "[1, {}, {}]",
        "[1, {}, 2, 2]",
        "[1, {}, 2]",
        "[{}]",
    ]:
        assert _taken(compiled, text) == validator.is_valid(json.loads(text)), text


WALKED: dict[str, Any] = {
    "all of a few objects": _unique(
        _object(["kind", "on"], kind={"enum": ["a", "b", "ab"]}, on={"type": "boolean"}), minItems=6
    ),
    "all of a few pairs": _unique(
        {"type": "array", "items": {"enum": [0, 1, 2]}, "minItems": 2, "maxItems": 2}, minItems=9
    ),
    "all of a few sets": _unique(_object(["tags"], tags=_unique({"enum": ["x", "y"]})), minItems=5),
    "optional keys": _unique(_object([], a={"type": "boolean"}, b={"type": "null"}), minItems=6),
    "constants": _unique({"enum": [[1], [2], {"a": 1}, {"a": [1, 2]}, "x"]}, minItems=5),
    "numbered": _unique(
        _object(["id"], id={"type": "integer"}, name={"type": "string"}), minItems=4
    ),
    "sets of sets": {"$ref": "#/$defs/set", "$defs": {"set": _unique({"$ref": "#/$defs/set"})}},
    "any": _unique({}, minItems=3),
}


@pytest.mark.parametrize("options", [{}, {"whitespace": "flexible"}, {"key_order": "any"}], ids=str)
@pytest.mark.parametrize("name", WALKED)
def test_an_answer_never_comes_to_a_dead_end(name: str, options: dict[str, str]) -> None:
    schema = WALKED[name]
    walk(_compiled(schema, **options), Draft202012Validator(schema), walks=3, steps=30)


@pytest.mark.parametrize(
    "text", ['[{"kind": "a", "on": true}, {"kind": "', '[{"kind": "ab", "on": false}']
)
def test_a_mask_has_the_tokens_that_are_taken(text: str) -> None:
    compiled, ids = _compiled(WALKED["all of a few objects"]), demo().ids(text)

    def state() -> Any:
        made = compiled.start()
        assert all(map(made.advance, ids))
        return made

    taken = {token for token in range(len(demo().mask) * 32) if state().advance(token)}
    assert taken == set(demo().allowed(state()))


def test_value_nested_too_deeply_is_not_begun() -> None:
    compiled = _compiled(_unique({}))
    deep = "[" * 128 + "]" * 128
    assert _taken(compiled, f"[{deep}]")
    assert not _taken(compiled, f"[{deep}, {deep}]")
    assert not _taken(compiled, f"[[{deep}]]")


async def test_an_answer_over_http_has_no_object_twice() -> None:
    schema = _unique(
        _object(["on", "of"], on={"type": "boolean"}, of={"enum": [[], {}]}), minItems=4
    )
    made = {"name": "x", "schema": schema, "strict": True}
    asked = {
        "messages": [{"role": "user", "content": "?"}],
        "max_tokens": 200,
        "response_format": {"type": "json_schema", "json_schema": made},
        "structured_outputs": {"close_within_max_tokens": True},
    }
    async with AsyncEngine(device="simulated", mode="server") as engine:
        server = HttpServer(engine, port=0)
        await server.start()
        async with httpx.AsyncClient(base_url=server.url, timeout=120) as http:
            for seed in range(3):
                answer = await http.post("/v1/chat/completions", json={**asked, "seed": seed})
                value = json.loads(answer.json()["choices"][0]["message"]["content"])
                assert len(value) == 4
                assert Draft202012Validator(schema).is_valid(value), value
        await server.stop(0)

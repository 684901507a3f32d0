"""Descriptions of grammars: the JSON that is compiled, and the types that it is made from."""

import copy
import json
import pickle
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import msgspec
import pydantic
import pytest

from pyengine.errors import InvalidRequestError
from pyengine.grammar import (
    Grammar,
    any_of,
    any_order,
    choice,
    description,
    ebnf,
    free_text,
    json_object,
    json_schema,
    json_value,
    lark,
    optional,
    parse_answer,
    regex,
    repeat,
    sequence,
    text,
)
from pyengine.grammar.algebra import any_but


def spelled(grammar: Grammar) -> Any:
    return json.loads(grammar.description())


SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (
            json_schema(SCHEMA),
            {
                "kind": "json_schema",
                "schema": SCHEMA,
                "whitespace": "single_line",
                "unenforceable": "refuse",
            },
        ),
        (
            json_schema(True, whitespace="compact", unenforceable="ignore"),
            {
                "kind": "json_schema",
                "schema": True,
                "whitespace": "compact",
                "unenforceable": "ignore",
            },
        ),
        (
            json_schema(True, key_order="any"),
            {
                "kind": "json_schema",
                "schema": True,
                "whitespace": "single_line",
                "unenforceable": "refuse",
                "key_order": "any",
            },
        ),
        (
            any_order([text("a")], [text("b")], separator=text(",")),
            {
                "kind": "any_order",
                "required": [{"kind": "text", "text": "a"}],
                "optional": [{"kind": "text", "text": "b"}],
                "separator": {"kind": "text", "text": ","},
            },
        ),
        (json_object(), {"kind": "json_object", "whitespace": "single_line"}),
        (json_value(whitespace="flexible"), {"kind": "json_value", "whitespace": "flexible"}),
        (regex("[ab]+"), {"kind": "regex", "pattern": "[ab]+"}),
        (choice(["ja", "nein"]), {"kind": "choice", "choices": ["ja", "nein"]}),
        (lark("start: /a/"), {"kind": "lark", "source": "start: /a/"}),
        (ebnf('root ::= "é"'), {"kind": "ebnf", "source": 'root ::= "é"'}),
        (text("<t>"), {"kind": "text", "text": "<t>"}),
        (free_text(["<t>"]), {"kind": "free_text", "until": ["<t>"]}),
        (
            sequence(text("a"), optional(text("b"))),
            {
                "kind": "sequence",
                "parts": [
                    {"kind": "text", "text": "a"},
                    {"kind": "optional", "part": {"kind": "text", "text": "b"}},
                ],
            },
        ),
        (any_of(text("a")), {"kind": "text", "text": "a"}),
        (
            repeat(any_of(text("a"), text("b")), min=1, max=3, separator=text(",")),
            {
                "kind": "repeat",
                "part": {
                    "kind": "any_of",
                    "options": [{"kind": "text", "text": "a"}, {"kind": "text", "text": "b"}],
                },
                "min": 1,
                "max": 3,
                "separator": {"kind": "text", "text": ","},
            },
        ),
    ],
)
def test_descriptions_compile_to_their_language(made: Grammar, expected: Any) -> None:
    assert spelled(made) == expected
    assert list(spelled(made)) == list(expected)


def test_a_grammar_is_a_value() -> None:
    one, other = sequence(text("a"), regex("b")), sequence(text("a"), regex("b"))
    assert one == other
    assert len({one, other, text("a")}) == 2
    assert one != "a"
    assert one.tagged("x") == one
    assert one.tagged("x").tag == "x"
    for copied in (copy.deepcopy(one), pickle.loads(pickle.dumps(one))):
        assert copied == one
    with pytest.raises(AttributeError):
        one.kind = "text"
    with pytest.raises(TypeError):
        one.fields["parts"] = ()  # type: ignore[index]
    assert "sequence" in repr(one)


def test_the_order_of_properties_is_kept() -> None:
    assert b'"b":' in json_schema(SCHEMA).description().partition(b'"a":')[0]
    assert json_schema(json.dumps(SCHEMA)) == json_schema(SCHEMA)


def mistyped(value: Any) -> Any:
    """``value`` where the signature wants another type."""
    return value


@pytest.mark.parametrize(
    "make",
    [
        lambda: json_schema("{"),
        lambda: json_schema("[1]"),
        lambda: json_schema({"enum": [object()]}),
        lambda: json_schema(object),
        lambda: json_schema({}, whitespace=mistyped("some")),
        lambda: json_schema({}, unenforceable=mistyped("maybe")),
        lambda: json_schema({}, key_order=mistyped("sorted")),
        lambda: regex(mistyped(7)),
        lambda: regex("\ud800"),
        lambda: choice([]),
        lambda: choice("yes"),
        lambda: choice(["a", mistyped(1)]),
        lambda: free_text([""]),
        lambda: free_text("<t>"),
        lambda: any_of(),
        lambda: sequence(text("a"), mistyped("b")),
        lambda: repeat(text("a"), min=2, max=1),
    ],
)
def test_malformed_descriptions_are_refused(make: Any) -> None:
    with pytest.raises(InvalidRequestError):
        make()


class Model(pydantic.BaseModel):
    name: str
    kind: Literal["a", "b"] = "a"
    inner: "list[Model]" = []


@dataclass
class Point:
    x: int
    tags: list[str] = field(default_factory=list)


class Struct(msgspec.Struct):
    point: Point
    ratio: float | None = None


class Typed(TypedDict):
    x: int


@dataclass
class Holder:
    model: Model


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (Model, '{"name": "n", "kind": "b"}', Model(name="n", kind="b")),
        (Point, '{"x": 1, "tags": ["t"]}', Point(1, ["t"])),
        (Struct, '{"point": {"x": 2}}', Struct(Point(2))),
        (Typed, '{"x": 3}', {"x": 3}),
        (Holder, '{"model": {"name": "n"}}', Holder(Model(name="n"))),
    ],
)
def test_types_and_their_values(kind: Any, answer: str, value: Any) -> None:
    schema = spelled(json_schema(kind))["schema"]
    root = schema
    if "$ref" in root:
        root = schema["$defs"][root["$ref"].rpartition("/")[2]]
    assert root["additionalProperties"] is False
    assert set(root["properties"]) >= set(json.loads(answer))
    assert parse_answer(answer, kind) == value
    assert parse_answer(answer.encode(), kind) == value
    with pytest.raises(ValueError):  # noqa: PT011 (of whichever library)
        parse_answer(answer[:-3], kind)


def test_objects_within_are_closed_too() -> None:
    schema = spelled(json_schema(Struct))["schema"]
    assert schema["$defs"]["Point"]["additionalProperties"] is False


@pytest.mark.parametrize(
    ("marks", "inside", "outside"),
    [
        (["{"], ["a", "<", "["], ["{", " ", "\n"]),
        (["[", "<|x|>"], ["a", "<b", "{"], ["[", "<|", "<<", "<"]),
        (["```json", "{"], ["a", "`a"], ["`", "``", "{"]),
    ],
)
def test_text_that_begins_with_no_mark(
    marks: list[str], inside: list[str], outside: list[str]
) -> None:
    import re

    pattern = re.compile(any_but(marks))
    assert all(pattern.fullmatch(each) for each in inside)
    assert not any(pattern.fullmatch(each) for each in outside)


def test_pydantic_types_within_other_types() -> None:
    for kind in (list[Model], dict[str, Model], Model | None, list[Holder]):
        schema = spelled(json_schema(kind))["schema"]
        assert schema["$defs"]["Model"]["additionalProperties"] is False
    assert parse_answer('[{"name": "n"}]', list[Model]) == [Model(name="n")]
    optional: Any = Model | None
    assert parse_answer("null", optional) is None
    assert parse_answer("[1]", list[int]) == [1]


def test_demands_on_one_value_are_left_alone() -> None:
    class Both(pydantic.BaseModel):
        model_config = pydantic.ConfigDict(
            json_schema_extra={
                "allOf": [{"properties": {"a": {}}}, {"properties": {"b": {}}}],
                "not": {"properties": {"c": {"const": 1}}},
            }
        )
        a: int
        inner: Model

    schema = spelled(json_schema(Both))["schema"]
    assert all("additionalProperties" not in each for each in schema["allOf"])
    assert "additionalProperties" not in schema["not"]
    assert "additionalProperties" not in schema
    assert schema["$defs"]["Model"]["additionalProperties"] is False


def test_another_tag_encodes_nothing_again(monkeypatch: pytest.MonkeyPatch) -> None:
    made = sequence(text("a"), regex("b")).tagged("x")

    def refused(value: Any) -> bytes:
        raise AssertionError(value)

    monkeypatch.setattr(description, "_encode", refused)
    tagged = made.tagged("y")
    assert tagged.description() is made.description()
    assert (tagged.kind, tagged.fields, tagged.tag) == (made.kind, made.fields, "y")


def test_a_description_has_a_longest() -> None:
    half = text("x" * (description.MOST_BYTES // 2))
    with pytest.raises(InvalidRequestError, match="longer than"):
        text("x" * description.MOST_BYTES)
    with pytest.raises(InvalidRequestError, match="longer than"):
        sequence(half, half)

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
    choice,
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
    structural_tag,
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
def test_what_is_compiled(made: Grammar, expected: Any) -> None:
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


@pytest.mark.parametrize(
    "make",
    [
        lambda: json_schema("{"),
        lambda: json_schema("[1]"),
        lambda: json_schema({"enum": [object()]}),
        lambda: json_schema(object),
        lambda: json_schema({}, whitespace="some"),
        lambda: json_schema({}, unenforceable="maybe"),
        lambda: regex(7),
        lambda: regex("\ud800"),
        lambda: choice([]),
        lambda: choice("yes"),
        lambda: choice(["a", 1]),
        lambda: free_text([""]),
        lambda: free_text("<t>"),
        lambda: any_of(),
        lambda: sequence(text("a"), "b"),
        lambda: repeat(text("a"), min=2, max=1),
    ],
)
def test_what_is_no_grammar(make: Any) -> None:
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


@pytest.mark.parametrize(
    ("kind", "answer", "value"),
    [
        (Model, '{"name": "n", "kind": "b"}', Model(name="n", kind="b")),
        (Point, '{"x": 1, "tags": ["t"]}', Point(1, ["t"])),
        (Struct, '{"point": {"x": 2}}', Struct(Point(2))),
        (Typed, '{"x": 3}', {"x": 3}),
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


TAG = {"type": "tag", "begin": "<f>", "content": {"type": "any_text"}, "end": "</f>"}


def tag_of(format_: Any) -> Any:
    return spelled(structural_tag({"type": "structural_tag", "format": format_}))


def t(exactly: str) -> Any:
    return {"kind": "text", "text": exactly}


def free(*until: str) -> Any:
    return {"kind": "free_text", "until": list(until)}


def seq(*parts: Any) -> Any:
    return {"kind": "sequence", "parts": list(parts)}


def rep(part: Any, least: int = 0, most: int | None = None, separator: Any = None) -> Any:
    return {"kind": "repeat", "part": part, "min": least, "max": most, "separator": separator}


MADE = seq(t("<f>"), free("</f>"), t("</f>"))


@pytest.mark.parametrize(
    ("format_", "expected"),
    [
        ({"type": "const_string", "value": "x"}, t("x")),
        ({"type": "any_text"}, free()),
        ({"type": "any_text", "excludes": ["no"]}, free("no")),
        ({"type": "regex", "pattern": "a+"}, spelled(regex("a+"))),
        ({"type": "grammar", "grammar": "root ::= [a]"}, spelled(ebnf("root ::= [a]"))),
        ({"type": "json_schema", "json_schema": SCHEMA}, spelled(json_schema(SCHEMA))),
        (TAG, MADE),
        (
            {"type": "sequence", "elements": [{"type": "any_text"}, TAG]},
            seq(free("<f>"), MADE),
        ),
        (
            {"type": "or", "elements": [{"type": "const_string", "value": "x"}, TAG]},
            {"kind": "any_of", "options": [t("x"), MADE]},
        ),
        ({"type": "optional", "content": TAG}, rep(MADE, 0, 1)),
        ({"type": "star", "content": TAG}, rep(MADE)),
        ({"type": "plus", "content": TAG}, rep(MADE, 1)),
        ({"type": "repeat", "min": 2, "max": -1, "content": TAG}, rep(MADE, 2)),
        (
            {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]},
            seq(free("<f"), rep(seq(MADE, free("<f")))),
        ),
        (
            {
                "type": "triggered_tags",
                "triggers": ["<f"],
                "tags": [TAG],
                "at_least_one": True,
                "stop_after_first": True,
                "excludes": ["</x>"],
            },
            seq(free("<f", "</x>"), MADE),
        ),
        (
            {"type": "tags_with_separator", "tags": [TAG], "separator": ", ", "at_least_one": True},
            rep(MADE, 1, None, t(", ")),
        ),
        (
            {
                "type": "tag",
                "begin": {"type": "token", "token": "<s>"},
                "content": {"type": "triggered_tags", "triggers": ["<f"], "tags": [TAG]},
                "end": ["</s>", "</e>"],
            },
            seq(
                t("<s>"),
                seq(
                    free("<f", "</s>", "</e>"),
                    rep(seq(MADE, free("<f", "</s>", "</e>"))),
                ),
                {"kind": "any_of", "options": [t("</s>"), t("</e>")]},
            ),
        ),
        (
            {"type": "dispatch", "rules": [["<f>", {"type": "const_string", "value": "x"}]]},
            seq(free("<f>"), rep(seq(seq(t("<f>"), t("x")), free("<f>")))),
        ),
        (
            {
                "type": "qwen_xml_parameter",
                "json_schema": {
                    "type": "object",
                    "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
                    "required": ["a"],
                },
            },
            seq(
                seq(
                    seq(t("<parameter=a>\n"), free("</parameter>"), t("\n</parameter>")),
                    {"kind": "optional", "part": t("\n")},
                ),
                {
                    "kind": "optional",
                    "part": seq(
                        seq(
                            t("<parameter=n>\n"),
                            spelled(json_schema({"type": "integer"})),
                            t("\n</parameter>"),
                        ),
                        {"kind": "optional", "part": t("\n")},
                    ),
                },
            ),
        ),
    ],
)
def test_structural_tags(format_: Any, expected: Any) -> None:
    assert tag_of(format_) == expected


def test_the_older_structural_tag() -> None:
    old = {
        "structures": [{"begin": "<f=a>", "schema": SCHEMA, "end": "</f>"}],
        "triggers": ["<f="],
    }
    made = seq(t("<f=a>"), spelled(json_schema(SCHEMA)), t("</f>"))
    expected = seq(free("<f="), rep(seq(made, free("<f="))))
    assert spelled(structural_tag(old)) == expected
    assert spelled(structural_tag(json.dumps({"type": "structural_tag", **old}))) == expected


@pytest.mark.parametrize(
    ("format_", "match"),
    [
        ({"type": "exclude_token"}, "'exclude_token', which is not supported"),
        ({"type": []}, "not supported"),
        ({"type": "any_text", "exclude": []}, r"format.exclude' is not supported"),
        ({"type": "json_schema", "json_schema": {}, "style": "glm_xml"}, "glm_xml"),
        ({"type": "json_schema"}, "json_schema"),
        ({"type": "const_string"}, "must be a string"),
        ({"type": "token", "token": 5}, "by number"),
        ({**TAG, "end": []}, "end"),
        ({"type": "sequence", "elements": [{"type": "any_text"}, {"type": "any_text"}]}, "fixed"),
        ({"type": "star", "content": {"type": "any_text"}}, "fixed"),
        ({"type": "triggered_tags", "triggers": ["x"], "tags": [TAG]}, "exactly one"),
        ({"type": "repeat", "content": TAG}, "integers"),
        (None, "must be an object"),
        ({"type": "sequence", "elements": [7]}, "list of objects"),
    ],
)
def test_structural_tags_that_are_refused(format_: Any, match: str) -> None:
    with pytest.raises(InvalidRequestError, match=match):
        tag_of(format_)
    with pytest.raises(InvalidRequestError):
        structural_tag("{")

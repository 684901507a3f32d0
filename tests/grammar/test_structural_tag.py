"""Structural tags, as xgrammar and vLLM write them, in the algebra of descriptions."""

import json
from typing import Any

import pytest

from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar, ebnf, json_schema, regex, structural_tag
from tests.answers import matches
from tests.grammar.test_grammar import demo

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}}


def spelled(grammar: Grammar) -> Any:
    return json.loads(grammar.description())


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


LINE_END = {"kind": "optional", "part": t("\n")}
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
                    seq(
                        t("<parameter=a>"),
                        LINE_END,
                        free("</parameter>"),
                        LINE_END,
                        t("</parameter>"),
                    ),
                    LINE_END,
                ),
                {
                    "kind": "optional",
                    "part": seq(
                        seq(
                            t("<parameter=n>"),
                            LINE_END,
                            spelled(json_schema({"type": "integer"}, name="parameter 'n'")),
                            LINE_END,
                            t("</parameter>"),
                        ),
                        LINE_END,
                    ),
                },
            ),
        ),
    ],
)
def test_structural_tags(format_: Any, expected: Any) -> None:
    assert tag_of(format_) == expected


PARAMETERS = {
    "type": "object",
    "properties": {"a": {"type": "string"}, "n": {"type": "integer"}},
    "required": ["a", "n"],
}
STYLES = {
    "qwen_xml": ("<parameter=a>{}</parameter>", "<parameter=n>{}</parameter>"),
    "minimax_xml": ('<parameter name="a">{}</parameter>', '<parameter name="n">{}</parameter>'),
    "deepseek_xml": (
        '<｜DSML｜parameter name="a" string="true">{}</｜DSML｜parameter>',
        '<｜DSML｜parameter name="n" string="false">{}</｜DSML｜parameter>',
    ),
    "glm_xml": (
        "<arg_key>a</arg_key><arg_value>{}</arg_value>",
        "<arg_key>n</arg_key><arg_value>{}</arg_value>",
    ),
}


@pytest.mark.parametrize("style", STYLES)
def test_styles_write_values_with_and_without_line_ends(style: str) -> None:
    format_ = {"type": "json_schema", "style": style, "json_schema": PARAMETERS}
    grammar = structural_tag({"format": format_})
    a, n = STYLES[style]
    for between in ("", "\n"):
        assert matches(grammar, a.format("some text") + between + n.format("12"))
        assert matches(grammar, a.format("\nsome text\n") + between + n.format("\n12\n"))
    assert not matches(grammar, a.format("x") + n.format("twelve"))
    assert not matches(grammar, n.format("1") + a.format("x"))
    assert not matches(grammar, a.format("x"))
    others = [each for name, each in STYLES.items() if name != style]
    assert not any(matches(grammar, a.format("x") + n.format("1")) for a, n in others)


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
        ({"type": "json_schema", "json_schema": {}, "style": "yaml"}, "yaml"),
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


INTEGER = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}


def counted(name: str) -> Any:
    content = {"type": "json_schema", "json_schema": INTEGER}
    return {"type": "tag", "begin": f"<{name}>", "content": content, "end": f"</{name}>"}


def older(*names: str) -> Any:
    structures = [{"begin": f"<{name}>", "schema": INTEGER, "end": f"</{name}>"} for name in names]
    return {"structures": structures, "triggers": ["<"]}


def newer(*tags: Any, **more: Any) -> Any:
    format_ = {"type": "triggered_tags", "triggers": ["<"], "tags": list(tags), **more}
    return {"type": "structural_tag", "format": format_}


ONE, OTHER = '<a>{"n": 1}</a>', '<b>{"n": 22}</b>'


@pytest.mark.parametrize(
    ("tag", "inside", "outside"),
    [
        (
            older("a"),
            ["", "x", ONE, f"x{ONE}", f"x{ONE}y", ONE + ONE, f"x{ONE}y{ONE}z{ONE}{ONE}."],
            ["<", "<a>", f"x{ONE}<", '<a>{"n": "1"}</a>', f'{ONE}<a>{{"n": 1}}'],
        ),
        (
            older("a", "b"),
            ["", ONE + OTHER, f"x{OTHER}y{ONE}z{OTHER}", ONE + ONE + OTHER],
            [f'{ONE}<b>{{"n": 1}}</a>', f"{ONE}<c>"],
        ),
        (newer(counted("a"), counted("b")), ["", f"x{OTHER}y{ONE}z"], [f"{ONE}<c>"]),
        (newer(counted("a"), at_least_one=True), [ONE, f"x{ONE}y{ONE}"], ["", "x"]),
        (
            newer(counted("a"), {**TAG, "begin": "<f>"}),
            ["", "<f>any</f>", f"<f>1</f>{ONE}x<f></f>y<f>2</f>{ONE}{ONE}<f>3</f>"],
            ["<f>any", f"{ONE}<f>", "<f>any</f><g>"],
        ),
        (
            newer(counted("a"), {**TAG, "begin": "<f>"}, at_least_one=True),
            ["<f>any</f>", ONE, f"<f>1</f>x{ONE}<f>2</f>"],
            ["", "x", f"{ONE}<f>"],
        ),
    ],
)
def test_structural_tags_are_compiled(tag: Any, inside: list[str], outside: list[str]) -> None:
    compiled = demo().compile(spelled(structural_tag(tag)))
    for text in inside:
        assert demo().accepted(compiled, text) is None, text
    for text in outside:
        assert demo().accepted(compiled, text) is not None, text


def test_many_structural_tags_are_compiled() -> None:
    names = [f"a{number}" for number in range(200)]
    compiled = demo().compile(spelled(structural_tag(older(*names))))
    text = "".join(f'x<{name}>{{"n": 5}}</{name}>' for name in names[:3])
    assert demo().accepted(compiled, text) is None


def test_both_forms_at_once_are_refused() -> None:
    with pytest.raises(InvalidRequestError, match="format"):
        structural_tag({**older("a"), "type": "structural_tag", "format": TAG})

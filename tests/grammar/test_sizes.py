"""Large constants and counts: each is written to its end, token by token."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.grammar.test_grammar import demo


def _schema(schema: Any) -> dict[str, Any]:
    return {"kind": "json_schema", "schema": schema}


CONSTANT = "".join(chr(97 + at * at % 26) for at in range(120_000))
ITEM = {"type": "object", "properties": {"a": {"type": "string"}}}

# A description, and a text that it allows.
LARGE: dict[str, tuple[dict[str, Any], str]] = {
    "a constant": (_schema({"const": CONSTANT}), json.dumps(CONSTANT)),
    "one of two texts": (
        {"kind": "choice", "choices": [CONSTANT + "a", CONSTANT + "b"]},
        CONSTANT + "b",
    ),
    "a literal in Lark": (
        {"kind": "lark", "source": f'start: "{CONSTANT}" /[0-9]+/'},
        CONSTANT + "12",
    ),
    "many items": (
        _schema({"type": "array", "items": ITEM, "minItems": 12_000}),
        json.dumps([{"a": "b"}] * 12_000),
    ),
    "a part repeated": (
        {
            "kind": "repeat",
            "part": _schema({"type": "integer"}),
            "min": 20_000,
            "max": 20_000,
            "separator": {"kind": "text", "text": "\n"},
        },
        "\n".join(["7"] * 20_000),
    ),
    "a rule repeated in EBNF": (
        {"kind": "ebnf", "source": 'root ::= item{20000}\nitem ::= "x" | "(" item ")"'},
        "(x)x" * 10_000,
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", LARGE)
def test_large_value_is_written_to_its_end(name: str) -> None:
    description, text = LARGE[name]
    state, mask = demo().compile(description).start(), demo().mask
    for at, token in enumerate(demo().ids(text)):
        state.fill_mask(mask)
        assert mask[token // 32] >> token % 32 & 1, (at, state.failure)
        assert state.advance(token), (at, state.failure)
    assert set(demo().ends) <= demo().allowed(state)


BOUNDS = [0, 1, 999, 1_000, 1_001, 1_999, 2_000, 2_001, 2_300, 3_000, 4_999, 5_000, 7_500, 10_000]
SPELLED = ["a", "é", "\U0001f600", r"\n", r"\"", r"\u0041", r"\ud83d\ude00", "\\\\"]


def _taken(description: dict[str, Any], text: str) -> bool:
    """Whether the text is a whole answer."""
    state = demo().compile(description).start()
    return all(map(state.advance, demo().ids(text))) and state.advance(demo().ends[0])


@settings(max_examples=60, deadline=None)
@given(
    least=st.sampled_from(BOUNDS),
    most=st.none() | st.sampled_from(BOUNDS),
    count=st.sampled_from(BOUNDS) | st.integers(0, 11_000),
    spelled=st.lists(st.sampled_from(SPELLED), min_size=1, max_size=5),
    inside=st.sampled_from(["{}", '{{"a": {}, "b": 1}}', "[{0}, {0}]"]),
)
def test_a_string_has_as_many_characters_as_it_may_have(
    least: int, most: int | None, count: int, spelled: list[str], inside: str
) -> None:
    """However they are spelled, alone and within other values."""
    string: dict[str, Any] = {"type": "string", "minLength": least}
    if most is not None:
        string["maxLength"] = most = max(most, least)
    schema = {
        "{}": string,
        '{{"a": {}, "b": 1}}': {
            "type": "object",
            "properties": {"a": {"anyOf": [string, {"type": "null"}]}, "b": {"type": "integer"}},
        },
        "[{0}, {0}]": {"type": "array", "items": string},
    }[inside]
    text = "".join(spelled[at % len(spelled)] for at in range(count))
    fits = least <= count and (most is None or count <= most)
    assert _taken(_schema(schema), inside.format(f'"{text}"')) == fits


@pytest.mark.parametrize(
    "other",
    [{"enum": ["b" * 1_500, "c"]}, {"type": "string", "pattern": "^b*$"}, {"$ref": "#/$defs/b"}],
)
def test_strings_of_another_case_are_taken_beside_counted_ones(other: Any) -> None:
    schema = {
        "$defs": {"b": {"type": "string", "pattern": "^b+$"}},
        "anyOf": [{"type": "string", "minLength": 2_000, "maxLength": 5_000}, other],
    }
    taken = [_taken(_schema(schema), f'"{"b" * count}"') for count in (1_500, 1_999, 2_000, 5_000)]
    assert taken == [True, "enum" not in other, True, True]


@pytest.mark.parametrize("bounds", [(2_000, 1_000_000), (100_000, None)])
def test_a_long_string_needs_no_more_states_than_a_piece_of_it(
    bounds: tuple[int, int | None],
) -> None:
    least, most = bounds
    schema = {"type": "string", "minLength": least, **({"maxLength": most} if most else {})}
    state = demo().compile(_schema(schema)).start()
    text = "the quick brown fox " * 15_000
    assert all(map(state.advance, demo().ids(f'"{text}"')))
    assert state.failure is None
    closing = demo().compile(_schema(schema)).start().closing_tokens()
    assert closing is not None
    written = demo().tokenizer.decode(closing, skip_special_tokens=False)
    assert len(json.loads(written)) == least


def _call(tool: int, keys: int) -> dict[str, Any]:
    properties = {f"{tool}_{key}": {"type": "string"} for key in range(keys)}
    name = {"kind": "text", "text": f"call {tool} "}
    return {
        "kind": "sequence",
        "parts": [name, _schema({"type": "object", "properties": properties})],
    }


def _calls(tools: int, keys: int) -> dict[str, Any]:
    """A call of one tool, and further calls."""
    call = {"kind": "any_of", "options": [_call(tool, keys) for tool in range(tools)]}
    several = {"kind": "repeat", "part": call, "min": 0, "max": None}
    return {"kind": "sequence", "parts": [call, {"kind": "text", "text": "\n"}, several]}


@pytest.mark.slow
def test_tools_that_may_be_called_again_are_compiled_once() -> None:
    # Twice as many symbols would be more than the parser numbers.
    state = demo().compile(_calls(tools=600, keys=6)).start()
    for token in demo().ids('call 599 {"599_0": "a"}\ncall 0 {"0_5": "b"}'):
        assert state.advance(token), state.failure


@pytest.mark.slow
def test_grammar_of_too_many_parts_is_refused_in_plain_words() -> None:
    with pytest.raises(ValueError, match="too many parts; write fewer tools"):
        demo().compile(_calls(tools=1_400, keys=6))

"""Large constants and counts: each is written to its end, token by token."""

import json
from typing import Any

import pytest

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
def test_it_is_written_to_its_end(name: str) -> None:
    description, text = LARGE[name]
    state, mask = demo().compile(description).start(), demo().mask
    for at, token in enumerate(demo().ids(text)):
        state.fill_mask(mask)
        assert mask[token // 32] >> token % 32 & 1, (at, state.failure)
        assert state.advance(token), (at, state.failure)
    assert set(demo().ends) <= demo().allowed(state)

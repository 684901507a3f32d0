"""Answers are closed from anywhere, at the shortest end: large grammars, and random schemas."""

import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from pyengine._core import CompiledGrammar, GrammarState
from tests.grammar.test_grammar import demo

NUMBERS = {"type": "integer"}
KEYS = {f"key{at}": NUMBERS for at in range(60)}
OBJECT = {"type": "object", "properties": KEYS, "required": list(KEYS)}
CLOSED_OBJECT = {**OBJECT, "additionalProperties": False}


def _keys(count: int, value: Any) -> dict[str, Any]:
    names = [f"o{at}" for at in range(count)]
    return {"type": "object", "properties": dict.fromkeys(names, value), "required": names}


def _array(items: Any, least: int, **more: Any) -> dict[str, Any]:
    return {"type": "array", "items": items, "minItems": least, **more}


def _schema(schema: Any, key_order: str = "schema") -> dict[str, Any]:
    return {"kind": "json_schema", "schema": schema, "key_order": key_order}


# What is large, and the bytes of its shortest text.
LARGE: dict[str, tuple[dict[str, Any], int | None]] = {
    "1200 keys in any order": (_schema(_keys(20, OBJECT), "any"), None),
    "objects of 60 keys in any order": (_schema(_array(CLOSED_OBJECT, 9), "any"), None),
    "a long constant": (_schema({"const": "x" * 20_000}), 20_002),
    "a long string": (_schema({"type": "string", "minLength": 5_000}), 5_002),
    "a pattern with a large count": (
        _schema({"type": "string", "pattern": "^[a-z]{9000}$"}),
        9_002,
    ),
    "a regex with a large count": ({"kind": "regex", "pattern": "(ab|c[0-9]){4000}"}, 8_000),
    "many items": (_schema(_array(NUMBERS, 2_000)), 2 + 2_000 + 2 * 1_999),
    "many objects": (_schema(_array(_keys(3, NUMBERS), 300)), None),
    "deep": (_schema(_array(_array(_array({"type": "string", "minLength": 9}, 9), 9), 9)), None),
    "different numbers": (
        _schema(_array(NUMBERS, 300, uniqueItems=True)),
        # 0 to 9, -1 to -9 and those of two digits, others of three characters.
        2 + 10 + 2 * 99 + 3 * 191 + 2 * 299,
    ),
    "different strings": (_schema(_array({"type": "string"}, 300, uniqueItems=True)), None),
    "different values of a pattern": (
        _schema(_array({"type": "string", "pattern": "^[a-c]{1,8}$"}, 100, uniqueItems=True)),
        2 + 3 * 3 + 9 * 4 + 27 * 5 + 61 * 6 + 2 * 99,
    ),
    "nearly all of an enumeration": (
        _schema(_array({"enum": [f"value{at}" for at in range(300)]}, 290, uniqueItems=True)),
        2 + 10 * 8 + 90 * 9 + 190 * 10 + 2 * 289,
    ),
    "long strings that differ at their end": (
        _schema(
            _array({"type": "string", "pattern": f"^{'p' * 100}[a-d]{{3}}$"}, 9, uniqueItems=True)
        ),
        2 + 9 * 105 + 2 * 8,
    ),
    "a large enumeration": (_schema({"enum": [f"v{at}" for at in range(9_000)]}), 4),
    "Lark": (
        {"kind": "lark", "source": 'start: x{900} "end"\nx: "[" WORD "]"\nWORD: /[a-z]{2,}/\n'},
        900 * 4 + 3,
    ),
    # A word is read as long as it may be, so that `ab` never ends one.
    "lexemes in each other's way": (
        {"kind": "lark", "source": 'start: W "0" | W "ab"\nW: /[a-b]+/\n'},
        2,
    ),
    "EBNF": (
        {"kind": "ebnf", "source": 'root ::= ("a" [b-z]{3,9} ","){400} "." | "(" root ")"'},
        400 * 5 + 1,
    ),
}


def _text(tokens: list[int]) -> str:
    return demo().tokenizer.decode(tokens, skip_special_tokens=False)


def _bytes(tokens: list[int]) -> int:
    # The vocabulary writes each byte as a character.
    return sum(len(demo().tokenizer.id_to_token(token) or "") for token in tokens)


def _assert_sure(state: GrammarState, known: list[int]) -> None:
    """What is said to be enough is enough."""
    for limit in {len(known) - 1, len(known), 2 * len(known), 10 * len(known) + 100}:
        if limit >= 0 and state.closes_within(limit):
            closing = state.closing_tokens(limit)
            assert closing is not None
            assert len(closing) <= limit


def _closed(compiled: CompiledGrammar, seed: int, steps: int, spare: int) -> str:
    """An answer of tokens drawn from the masks, closed within the budget promised at its start."""
    chance, state, mask = random.Random(seed), compiled.start(), np.zeros(64, np.uint32)
    known = state.closing_tokens()
    assert known is not None
    taken: list[int] = []
    budget = len(known) + spare
    while len(taken) < steps and not state.is_terminated:
        state.fill_mask(mask)
        allowed = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        token = int(chance.choice(allowed))
        if token in demo().ends:
            break
        assert state.advance(token)
        further = state.closing_tokens()
        assert further is not None, _text([*taken, token])
        if len(taken) + 1 + len(further) > budget:
            break
        taken, known = [*taken, token], further
        _assert_sure(state, known)
    assert len(taken) + len(known) <= budget
    whole = compiled.start()
    assert all(map(whole.advance, taken + known)), _text(taken + known)
    assert whole.is_terminated or whole.advance(min(demo().ends))
    return _text(taken + known)


@pytest.mark.parametrize("name", LARGE)
def test_large_answer_is_closed_within_the_promised_budget(name: str) -> None:
    description, least = LARGE[name]
    compiled = demo().compile(description)
    closing = compiled.start().closing_tokens()
    assert closing is not None
    if least is not None:
        assert _bytes(closing) == least
    text = _closed(compiled, 1, 12, 40)
    if description["kind"] == "json_schema":
        assert Draft202012Validator(description["schema"]).is_valid(json.loads(text))


SCALARS: list[Any] = [
    {"type": "string", "minLength": 3},
    {"type": "string", "pattern": "^[a-b]{1,3}$"},
    {"enum": ["a", "ab", 1, 10, None]},
    {"type": "number", "minimum": -3, "maximum": 12},
    {"type": "integer", "multipleOf": 7},
    {"type": "boolean"},
    {"const": "x" * 50},
]


def _larger(schemas: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    small = st.integers(0, 3)

    @st.composite
    def objects(draw: st.DrawFn) -> Any:
        names = draw(st.lists(st.sampled_from("abcd"), unique=True))
        made: dict[str, Any] = {"type": "object", "properties": {n: draw(schemas) for n in names}}
        made["required"] = [name for name in names if draw(st.booleans())]
        made["additionalProperties"] = draw(st.just(False) | schemas)
        return made

    arrays = st.builds(lambda items, least: _array(items, least), schemas, small)
    different = st.builds(
        lambda items, least: _array(items, least, uniqueItems=True),
        st.sampled_from(SCALARS[:2]),
        small,
    )
    either = st.builds(lambda some: {"anyOf": some}, st.lists(schemas, min_size=1, max_size=3))
    return objects() | arrays | different | either


RANDOM = st.recursive(st.sampled_from(SCALARS), _larger, max_leaves=6)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
@given(schema=RANDOM, key_order=st.sampled_from(["schema", "any"]), seed=st.integers(0, 9))
def test_any_answer_is_closed_at_its_shortest(schema: Any, key_order: str, seed: int) -> None:
    """No token leads to an end that is nearer by more than the token."""
    compiled = demo().compile(_schema(schema, key_order))
    text = _closed(compiled, seed, 30, 20)
    assert Draft202012Validator(schema).is_valid(json.loads(text)), text
    chance, state = random.Random(seed), compiled.start()
    different = "uniqueItems" in json.dumps(schema)
    for _ in range(12):
        allowed = sorted(demo().allowed(state) - set(demo().ends))
        if not allowed or state.is_terminated:
            break
        before = state.closing_tokens()
        assert before is not None
        token = chance.choice(allowed)
        assert state.advance(token)
        behind = state.closing_tokens()
        assert behind is not None
        # Where items must differ, whether they come at all is chosen by the shortest.
        assert different or _bytes(before) <= _bytes([token, *behind])

"""JSON Schemas through the masks, token by token, with the vocabulary of Qwen2."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer, normalizers

from pyengine._core import CompiledGrammar, GrammarContext, compile_grammar
from tests.grammar.schema_suite import Accepts, Group, RefusedError, read, run, written
from tests.grammar.test_grammar import demo
from tests.reference import SCHEMA_SUITE, fetched

# Far more than any needs, even in a debug build beside other work: it must never be the limit here.
PATIENCE = 120.0
VOCAB_SIZE = 151_936
# Of the 383 schemas: the others refer to other documents, allow nothing at all, or ask for what no
# grammar here can say (as counting the names of an object that the schema does not know).
LEAST_ACCEPTED = 344


class Engine:
    """The engine's own compiler, and a walk that looks at every mask."""

    def __init__(self, tokenizer: Path) -> None:
        text = tokenizer.read_text(encoding="utf-8")
        self.tokenizer = Tokenizer.from_str(text)
        # What is written is what is tested: its normalizer would compose characters first.
        self.tokenizer.normalizer = normalizers.Sequence([])
        self.end = self.tokenizer.get_vocab()["<|im_end|>"]
        self.context = GrammarContext.from_tokenizer_json(text, [self.end], VOCAB_SIZE)
        self.mask = np.zeros(self.context.mask_words, dtype=np.uint32)

    def compiled(self, schema: Any, **more: Any) -> CompiledGrammar:
        description = {"kind": "json_schema", "schema": schema, **more}
        return compile_grammar(self.context, json.dumps(description).encode(), PATIENCE)

    def accepts(self, grammar: CompiledGrammar, text: str) -> bool:
        """Whether each token's bit is set when its turn comes, and at the end the end token's."""
        state = grammar.start()
        for token in [*self.tokenizer.encode(text, add_special_tokens=False).ids, self.end]:
            state.fill_mask(self.mask)
            allowed = bool(self.mask[token // 32] >> np.uint32(token % 32) & np.uint32(1))
            assert state.advance(token) == allowed, text
            if not allowed:
                return False
        assert state.is_terminated, text
        return True

    def compile_schema(self, schema: Any) -> Accepts:
        try:
            grammar = self.compiled(schema)
        except ValueError as error:
            raise RefusedError(str(error)) from None
        narrowed = "is fulfilled by the first items"
        assert all("format" in warning or narrowed in warning for warning in grammar.warnings)
        return lambda text: self.accepts(grammar, text)


@pytest.fixture(scope="module")
def engine() -> Engine:
    return Engine(fetched("tokenizers/qwen2.json"))


@pytest.mark.timeout(900)
def test_accepted_schemas_are_enforced(engine: Engine) -> None:
    outcome = run(read(SCHEMA_SUITE), engine.compile_schema)
    assert outcome.wrong == []
    assert outcome.accepted >= LEAST_ACCEPTED
    assert outcome.accepted + outcome.refused == 383


def test_the_check_sees_what_is_wrong(engine: Engine) -> None:
    """A schema that forbids more, and one that allows more, than the instances say."""
    tests = [("a string", "x", True), ("a number", 1, False), ("two keys", {"b": 1, "a": 2}, True)]
    for schema in ({"type": "number"}, {}):
        outcome = run([Group("x", "y", schema, tests)], engine.compile_schema)
        assert len(outcome.wrong) == {"number": 3, None: 1}[schema.get("type")]
        assert outcome.right == set()


def test_schema_that_cannot_be_enforced_is_refused_by_name(engine: Engine) -> None:
    tags = {"type": "array", "items": {"type": "string", "pattern": r"^(.)\1$"}}
    schema = {"type": "object", "properties": {"tags": tags}, "required": ["tags"]}
    with pytest.raises(ValueError, match="'pattern' at #/properties/tags/items cannot be enforced"):
        engine.compiled(schema)
    grammar = engine.compiled(schema, unenforceable="ignore")
    assert grammar.warnings == ["'pattern' at #/properties/tags/items is not enforced"]
    assert engine.accepts(grammar, '{"tags": ["aa", "ab"]}')
    assert not engine.accepts(grammar, '{"tags": ["aa", 1]}')


@pytest.mark.slow
def test_keywords_left_out_forbid_nothing() -> None:
    """What is valid against a schema that is refused can be written once that may be left out."""
    checked = 0
    for group in read(SCHEMA_SUITE):
        description = {"kind": "json_schema", "schema": group.schema, "key_order": "any"}
        try:
            demo().compile(description)
            continue
        except ValueError:
            pass
        valid = [instance for _, instance, is_valid in group.tests if is_valid]
        # With an unknown dialect 2020-12 is enforced, as a warning says.
        if not valid or group.file == "vocabulary":
            continue
        grammar = demo().compile(description | {"unenforceable": "ignore"})
        assert grammar.warnings
        for instance in valid:
            assert demo().accepted(grammar, written(instance)) is None, (group, instance)
            checked += 1
    assert checked > 20


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        ({"not": {"type": "integer"}}, ["1.5", "-0.25", '"a"', "[1]"], ["1", "2.0", "-3"]),
        ({"oneOf": [{"type": "integer"}, {"minimum": 2}]}, ["1", "2.5"], ["3", "1.5"]),
        (
            {
                "type": "object",
                "properties": {"a": {"not": {"multipleOf": 1}}, "b": {"type": "string"}},
                "required": ["b"],
                "additionalProperties": {"type": "boolean"},
                "maxProperties": 3,
            },
            ['{"b": "x"}', '{"a": 0.5, "b": "x"}', '{"b": "x", "c": true, "d": true}'],
            ['{"b": "x", "a": 0.5}', '{"a": 1, "b": "x"}', '{"a": 0.5}', '{"c": true, "b": "x"}'],
        ),
        (
            {"prefixItems": [True], "contains": {"type": "string"}, "unevaluatedItems": False},
            ['[1, "a"]', '["a"]', '["a", "b"]', '[1, "a", "b"]'],
            ["[1]", "[]", "[1, 2]", '[1, "a", 2]'],
        ),
        (
            {
                "type": "array",
                "prefixItems": [True, True],
                "items": {"type": "string"},
                "contains": {"type": "string"},
                "minContains": 2,
                "maxContains": 3,
            },
            ['["a", "b"]', '[1, 2, "a", "b"]', '[1, "a", "b", "c"]', '["a", "b", "c"]'],
            ['[1, "a"]', '[1, 2, "a"]', '["a", "b", "c", "d"]', '[1, 2, "a", "b", "c", "d"]'],
        ),
        (
            {"type": "integer", "minimum": 0, "maximum": 2**64 - 1},
            ["0", "9007199254740993", "18446744073709551615"],
            ["-1", "18446744073709551616"],
        ),
        (
            {"type": "integer", "minimum": -(2**63), "maximum": 2**63 - 1},
            ["-9223372036854775808", "9223372036854775807"],
            ["-9223372036854775809", "9223372036854775808"],
        ),
        (
            {"items": {"enum": [*"abcdefg", None, 1]}, "type": "array", "uniqueItems": True},
            ["[]", '["g", "a"]', '[null, 1, "a", "b", "c", "d", "e", "f", "g"]'],
            ['["a", "a"]', '[1, null, "b", 1]', '["x"]'],
        ),
        (
            {
                "type": "array",
                "items": {"type": "integer", "minimum": 1, "maximum": 20},
                "uniqueItems": True,
                "minItems": 2,
                "maxItems": 5,
            },
            ["[1, 20]", "[11, 1]", "[1, 2, 3, 4, 5]"],
            ["[1]", "[1, 2, 1]", "[1, 2, 3, 4, 5, 6]", "[21, 1]"],
        ),
        (
            {"type": "object", "patternProperties": {"[0-9a-f]{32}": {"type": "integer"}}},
            ['{"' + "0af1" * 8 + '": 1, "x": "y"}', '{"x' + "0af1" * 8 + 'y": 2}', "{}"],
            ['{"' + "0af1" * 8 + '": "x"}', '{"x' + "0af1" * 8 + 'y": null}'],
        ),
    ],
)
def test_keywords_beyond_the_compiler_are_enforced(
    engine: Engine, schema: Any, good: list[str], bad: list[str]
) -> None:
    grammar = engine.compiled(schema)
    assert all(engine.accepts(grammar, text) for text in good)
    assert not any(engine.accepts(grammar, text) for text in bad)


@pytest.mark.parametrize(
    ("whitespace", "text"),
    [
        ("single_line", '{"a": [1, 2], "b": null}'),
        ("compact", '{"a":[1,2],"b":null}'),
        ("flexible", '{ "a" : [\n  1, 2 ],"b":null}'),
    ],
)
def test_whitespace(engine: Engine, whitespace: str, text: str) -> None:
    schema = {
        "properties": {
            "a": {"type": "array", "items": {"type": "integer"}, "not": {"maxItems": 0}},
            "b": {"oneOf": [{"type": "null"}, {"type": "string"}]},
        },
        "additionalProperties": False,
        "type": "object",
    }
    grammar = engine.compiled(schema, whitespace=whitespace)
    assert engine.accepts(grammar, text)
    assert not engine.accepts(grammar, text.replace("[1,", "[").replace("1,", "").replace("2", ""))

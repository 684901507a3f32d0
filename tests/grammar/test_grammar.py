"""Grammars from Python: what they accept token by token, and that none hangs."""

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tokenizers import Tokenizer

from pyengine._core import CompiledGrammar, GrammarContext, GrammarState, compile_grammar
from pyengine.demo import MODEL_PATH
from tests.reference import fetched

# Far more than any needs, even in a debug build beside other work: it must never be the limit here.
PATIENCE = 120.0


class Setting:
    """A tokenizer, its context, and a mask to fill."""

    def __init__(self, path: Path, end_tokens: list[str], vocab_size: int) -> None:
        text = path.read_text(encoding="utf-8")
        self.tokenizer = Tokenizer.from_str(text)
        vocabulary = self.tokenizer.get_vocab()
        self.ends = [vocabulary[token] for token in end_tokens]
        self.context = GrammarContext.from_tokenizer_json(text, self.ends, vocab_size)
        self.mask = np.zeros(self.context.mask_words, dtype=np.uint32)

    def compile(self, description: dict[str, Any]) -> CompiledGrammar:
        return compile_grammar(self.context, json.dumps(description).encode(), PATIENCE)

    def allowed(self, state: GrammarState) -> set[int]:
        state.fill_mask(self.mask)
        bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
        return set(np.flatnonzero(bits).tolist())

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def accepted(self, grammar: CompiledGrammar, text: str) -> int | None:
        """How many of its tokens were taken before one was not; None if it is a whole answer."""
        state = grammar.start()
        for at, token in enumerate([*self.ids(text), self.ends[0]]):
            listed = token in self.allowed(state)
            assert state.advance(token) == listed, (text, at)
            if not listed:
                return at
        assert state.is_terminated
        assert self.allowed(state) == set(self.ends)
        return None


@cache
def demo() -> Setting:
    return Setting(MODEL_PATH / "tokenizer.json", ["<|im_end|>", "<|endoftext|>"], 2048)


@cache
def qwen2() -> Setting:
    # The model has more logits than the tokenizer has tokens.
    return Setting(fetched("tokenizers/qwen2.json"), ["<|im_end|>"], 151_936)


@pytest.fixture(params=["demo", "qwen2"])
def setting(request: pytest.FixtureRequest) -> Setting:
    return demo() if request.param == "demo" else qwen2()


PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer", "minimum": 0},
        "kind": {"enum": ["cat", "dog"]},
    },
    "required": ["name", "age", "kind"],
    "additionalProperties": False,
}


def schema(schema: object, **options: str) -> dict[str, Any]:
    return {"kind": "json_schema", "schema": schema, **options}


def test_a_schema_is_kept(setting: Setting) -> None:
    grammar = setting.compile(schema(PERSON))
    assert grammar.backend == "llguidance"
    assert grammar.warnings == []
    valid = {"name": 'Ann "the" Cat \n é \U0001f600', "age": 12, "kind": "dog"}
    assert setting.accepted(grammar, json.dumps(valid)) is None
    assert setting.accepted(grammar, json.dumps(valid, ensure_ascii=False)) is None
    for wrong in [
        '{"name": "Ann", "age": -1, "kind": "dog"}',
        '{"name": "Ann", "age": 1, "kind": "cow"}',
        '{"name": "Ann", "age": 1}',
        '{"name":"Ann", "age": 1, "kind": "dog"}',
        '{"name": "A\nB", "age": 1, "kind": "dog"}',
        '{"name": "Ann", "age": 1, "kind": "dog"} ',
        "",
    ]:
        assert setting.accepted(grammar, wrong) is not None, wrong


def test_white_space(setting: Setting) -> None:
    array = {"type": "array", "items": {"type": "integer"}}
    texts = {"single_line": "[1, 2]", "compact": "[1,2]", "flexible": "[1,\n  2]"}
    for whitespace, text in texts.items():
        grammar = setting.compile(schema(array, whitespace=whitespace))
        assert setting.accepted(grammar, text) is None
        taken = {name: setting.accepted(grammar, other) is None for name, other in texts.items()}
        assert taken == {name: name == whitespace or (whitespace == "flexible") for name in texts}
        assert setting.accepted(grammar, "[1," + " " * 300 + "2]") is not None


def test_kinds_that_are_tables(setting: Setting) -> None:
    choice = setting.compile({"kind": "choice", "choices": ["a", "ab", "abc", "é"]})
    date = setting.compile({"kind": "regex", "pattern": r"^[0-9]{4}-[01][0-9]$"})
    assert choice.backend == date.backend == "index"
    for text in ["a", "ab", "abc", "é"]:
        assert setting.accepted(choice, text) is None
    for text in ["", "b", "abcd"]:
        assert setting.accepted(choice, text) is not None
    assert setting.accepted(date, "2024-12") is None
    assert setting.accepted(date, "2024-22") is not None


def test_tags_and_tools(setting: Setting) -> None:
    call = {
        "kind": "sequence",
        "parts": [
            {"kind": "text", "text": "[call]"},
            schema(
                {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
            ),
            {"kind": "text", "text": "[/call]"},
        ],
    }
    answer = {
        "kind": "sequence",
        "parts": [
            {"kind": "free_text", "until": ["[call]"]},
            {"kind": "repeat", "part": call, "max": 2},
        ],
    }
    grammar = setting.compile(answer)
    one = '[call]{"city": "Oslo"}[/call]'
    for text in ["", "Just [text] [call", "Let me look: " + one, one + one]:
        assert setting.accepted(grammar, text) is None, text
    for text in ["[call]", "[call]{}[/call]", one + "more", one * 3]:
        assert setting.accepted(grammar, text) is not None, text


def test_special_tokens_never_match_text(setting: Setting) -> None:
    specials = set(setting.tokenizer.get_added_tokens_decoder())
    assert specials >= set(setting.ends)
    descriptions: list[dict[str, Any]] = [
        {"kind": "free_text", "until": []},
        {"kind": "regex", "pattern": "(?s:.)*"},
        {"kind": "regex", "pattern": r"[^\n]*"},
        {"kind": "json_value"},
        {"kind": "lark", "source": "start: /(?s:.*)/"},
    ]
    for description in descriptions:
        state = setting.compile(description).start()
        allowed = setting.allowed(state)
        assert not (allowed & specials) - set(setting.ends), description
        assert len(allowed) > 20
    inside = setting.compile({"kind": "json_value"}).start()
    assert inside.advance(setting.ids('"')[0])
    assert not setting.allowed(inside) & specials


def test_special_tokens_in_a_text(setting: Setting) -> None:
    grammar = setting.compile({"kind": "text", "text": "<|im_start|>user\n<|im_end|>!"})
    # An end token inside of the text ends nothing.
    assert setting.accepted(grammar, "<|im_start|>user\n<|im_end|>!") is None
    assert setting.accepted(grammar, "<|im_start|>user") == len(setting.ids("<|im_start|>user"))


def test_grammars_of_the_caller(setting: Setting) -> None:
    lark = {"kind": "lark", "source": 'start: "(" start* ")"'}
    ebnf = {"kind": "ebnf", "source": 'root ::= "(" root* ")" # nested'}
    for description in [lark, ebnf]:
        grammar = setting.compile(description)
        for text in ["()", "(()())", "((((()))))"]:
            assert setting.accepted(grammar, text) is None
        for text in ["(", ")", "())", "()()"]:
            assert setting.accepted(grammar, text) is not None


DEEP: dict[str, Any] = {}
for _ in range(100):
    DEEP = {"items": DEEP}

PAIR = {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}
CHAIN = {f"d{at}": {"properties": {"x": {"$ref": f"#/$defs/d{at + 1}"}}} for at in range(6000)}
RULES = "".join(f'r{at}: "a" r{at + 1}\n' for at in range(20_000))
MANY = {"kind": "repeat", "min": 9999, "part": {"kind": "json_value"}}

HOSTILE: dict[str, bytes | dict[str, Any]] = {
    "nested parts": b'{"kind":"optional","part":' * 5000,
    "nested schema": b'{"kind":"json_schema","schema":' + b'{"items":' * 50_000,
    "2 MB": schema({"enum": ["x" * 100 + str(at) for at in range(20_000)]}),
    "deep": schema(DEEP),
    "huge enum": schema({"enum": [f"value {at}" for at in range(30_000)]}),
    "exponential": {"kind": "regex", "pattern": "(a|b)*a(a|b){40}"},
    "counted": {"kind": "regex", "pattern": "((.{0,999}x){0,999}y){0,999}"},
    "many keys": schema({"properties": {f"key{at}": {} for at in range(2000)}}),
    "recursive": schema({"$ref": "#"}),
    "recursive pair": schema({"$defs": PAIR, "$ref": "#/$defs/a"}),
    "chain": schema({"$defs": CHAIN, "$ref": "#/$defs/d0"}),
    "rules": {"kind": "lark", "source": "start: r0\n" + RULES},
    "groups": {"kind": "ebnf", "source": "root ::= " + "(" * 20_000},
    "repeats": {"kind": "repeat", "min": 9999, "part": MANY},
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_descriptions_end(name: str) -> None:
    """Each is refused or compiled, within the default limit, and then its masks can be had."""
    hostile = HOSTILE[name]
    description = hostile if isinstance(hostile, bytes) else json.dumps(hostile).encode()
    try:
        grammar = compile_grammar(demo().context, description)
    except ValueError:
        return
    state = grammar.start()
    for _ in range(5):
        # The greatest id: end tokens have the least here.
        assert state.advance(max(demo().allowed(state)))
        assert state.failure is None


def test_wrong_grammars_are_refused() -> None:
    context = demo().context
    for description, named in [
        (b"", "EOF"),
        (b'{"kind": "xml"}', "xml"),
        (b'{"kind": "regex", "pattern": "a\\\\b"}', "word boundaries"),
        (b'{"kind": "lark", "source": "start: x"}', "x"),
        (b'{"kind": "ebnf", "source": "start ::= \\"a\\""}', "root"),
        (b'{"kind": "lark", "source": "start: s\\ns: s"}', "no text"),
    ]:
        with pytest.raises(ValueError, match=named):
            compile_grammar(context, description)
    with pytest.raises(ValueError, match="longer than 0 s"):
        compile_grammar(context, b'{"kind": "json_value"}', 0.0)
    with pytest.raises(ValueError, match="timeout_s"):
        compile_grammar(context, b'{"kind": "json_value"}', float("nan"))
    with pytest.raises(ValueError, match="end token"):
        GrammarContext.from_tokenizer_json("{}", [], 5)
    with pytest.raises(ValueError, match="not a tokenizer"):
        GrammarContext.from_tokenizer_json("{", [1], 5).load()


def test_masks_are_checked() -> None:
    state = demo().compile({"kind": "json_value"}).start()
    words = demo().context.mask_words
    assert words == 64
    with pytest.raises(TypeError):
        state.fill_mask(np.zeros(words, dtype=np.float32))
    with pytest.raises(ValueError, match="words"):
        state.fill_mask(np.zeros(words - 1, dtype=np.uint32))
    with pytest.raises(BufferError):
        state.fill_mask(np.zeros(2 * words, dtype=np.uint32)[::2])
    frozen = np.zeros(words, dtype=np.uint32)
    frozen.flags.writeable = False
    with pytest.raises(BufferError):
        state.fill_mask(frozen)
    assert not state.advance(2**31)

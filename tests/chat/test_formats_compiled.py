"""Chat formats: what the parser reads, the compiled grammar writes, token by token."""

import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pyengine._core import GrammarContext, compile_grammar
from pyengine.chat.formats import FORMATS, ChatFormat
from pyengine.chat.tools import Named, Tool, ToolChoice
from pyengine.errors import InvalidRequestError
from pyengine.grammar import Grammar, json_schema
from pyengine.grammar.algebra import KeyOrder
from pyengine.tokenizer import Tokenizer
from tests.chat.test_formats import FORMAT, IN_ANY_ORDER, THINKING, TOOLS
from tests.chat.walk import HOSTILE, LETTERS, Walker
from tools.demo_model.template import SPECIAL_TOKENS

# Special tokens are no text: one that is spelled in free text or a string is the token.
PIECES = [p for p in LETTERS + HOSTILE if not any(token in p for token in SPECIAL_TOKENS)]
ANSWER = json_schema(
    {"type": "object", "properties": {"answer": {"type": "string"}}, "required": ["answer"]}
)


@pytest.fixture(scope="module")
def tokenizer(demo_model: Path) -> Tokenizer:
    return Tokenizer.from_folder(demo_model)


@pytest.fixture(scope="module")
def context(tokenizer: Tokenizer) -> GrammarContext:
    return GrammarContext.from_tokenizer_json(
        tokenizer.tokenizer_json, tokenizer.eos_token_ids, tokenizer.vocab_size
    )


@FORMAT
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.function_scoped_fixture,
    ],
)
@given(data=st.data())
def test_calls_that_are_read_can_be_written(
    form: ChatFormat, data: st.DataObject, tokenizer: Tokenizer, context: GrammarContext
) -> None:
    choice: ToolChoice = data.draw(
        st.sampled_from(["auto", "auto", "required", Named("now"), "none"])
    )
    parallel, reasoning, is_open = (data.draw(st.booleans()) for _ in range(3))
    content = data.draw(st.sampled_from([None, None, ANSWER]))
    grammar = form.grammar(
        data.draw(st.sampled_from([TOOLS, IN_ANY_ORDER])),
        choice,
        parallel=parallel,
        reasoning=reasoning,
        reasoning_open=is_open and form.name in THINKING,
        content=content,
    )
    assert grammar is not None
    text = Walker(data.draw, PIECES).text(grammar)
    assert _written(tokenizer, context, grammar, text) == text


def _written(
    tokenizer: Tokenizer, context: GrammarContext, grammar: Grammar, text: str
) -> str | None:
    """How much of a text the compiled grammar lets through; None if all, but it must go on."""
    state = compile_grammar(context, grammar.description()).start()
    tokens = tokenizer.encode(text, add_special_tokens=False)
    for number, token in enumerate(tokens):
        if not state.advance(token):
            return tokenizer.decode(tokens[:number])
    mask = np.zeros(context.mask_words, np.uint32)
    state.fill_mask(mask)
    end = tokenizer.eos_token_ids[0]
    return text if mask[end // 32] >> (end % 32) & 1 else None


# A part that may be left out and what follows it begin alike: the longest match is one of two.
ALIKE = [
    (
        "gpt_oss",
        TOOLS,
        "<|channel|>analysis<|message|>x<|end|><|start|>assistant<|channel|>final<|message|>y",
    ),
    (
        "qwen3_coder",
        TOOLS[1:2],
        "<tool_call>\n<function=set-light.v2>\n<parameter=on>\ntrue\n</parameter>\n</function>"
        "\n</tool_call>",
    ),
]


@FORMAT
@pytest.mark.parametrize("tools", [TOOLS, IN_ANY_ORDER], ids=["schema", "any"])
def test_a_call_is_closed_anywhere(
    form: ChatFormat, tools: list[Tool], tokenizer: Tokenizer, context: GrammarContext
) -> None:
    grammar = form.grammar(tools, "required", reasoning=False)
    assert grammar is not None
    compiled = compile_grammar(context, grammar.description())
    mask = np.zeros(context.mask_words, np.uint32)
    draws = random.Random(1)
    for _ in range(3):
        state, taken = compiled.start(), 0
        while not state.is_terminated and taken < 60:
            closing = state.closing_tokens()
            assert closing is not None
            state.fill_mask(mask)
            may = np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
            assert state.advance(int(draws.choice(may)))
            taken += 1
        closing = state.closing_tokens()
        assert closing is not None
        assert all(map(state.advance, closing))
        state.fill_mask(mask)
        end = tokenizer.eos_token_ids[0]
        assert state.is_terminated or mask[end // 32] >> (end % 32) & 1


TURNED = Tool(
    "f",
    parameters={
        "type": "object",
        "properties": {
            "a": {"type": "boolean"},
            "b": {"type": "object", "properties": {"c": {"type": "null"}, "d": {"type": "null"}}},
            "e": {"enum": ["x", "y"]},
        },
        "required": ["a", "b"],
    },
)


@pytest.mark.parametrize(
    ("name", "call", "missing"),
    [
        (
            "hermes",
            '<tool_call>\n{"name": "f", "arguments": '
            '{"e": "y", "b": {"d": null, "c": null}, "a": true}}\n</tool_call>',
            ', "a": true',
        ),
        (
            "qwen3_coder",
            "<tool_call>\n<function=f>\n<parameter=e>\ny\n</parameter>\n<parameter=b>\n"
            '{"d": null, "c": null}\n</parameter>\n<parameter=a>\ntrue\n</parameter>\n</function>'
            "\n</tool_call>",
            "<parameter=a>\ntrue\n</parameter>\n",
        ),
        ("llama_pythonic", '[f(e="y", b={"d": null, "c": null}, a=True)]', ", a=True"),
        (
            "gemma4",
            '<|tool_call>call:f{e:<|"|>y<|"|>,b:{d:null,c:null},a:true}<tool_call|>',
            ",a:true",
        ),
    ],
)
def test_arguments_in_any_order(
    name: str, call: str, missing: str, tokenizer: Tokenizer, context: GrammarContext
) -> None:
    cases: list[tuple[KeyOrder, str, bool]] = [
        ("any", call, True),
        ("any", call.replace(missing, ""), False),
        ("schema", call, False),
    ]
    for key_order, text, written in cases:
        tool = replace(TURNED, key_order=key_order)
        grammar = FORMATS[name].grammar([tool], "required", reasoning=False)
        assert grammar is not None
        assert (_written(tokenizer, context, grammar, text) == text) == written


def test_too_many_parameters_for_any_order() -> None:
    many = {f"key{at}": {"type": "integer"} for at in range(65)}
    tool = Tool("f", parameters={"type": "object", "properties": many}, key_order="any")
    with pytest.raises(InvalidRequestError, match="in any order at most 64 parts may come, not 65"):
        FORMATS["qwen3_coder"].grammar([tool], "required")


@pytest.mark.parametrize(("name", "tools", "text"), ALIKE)
def test_tools_with_a_common_beginning_can_be_written(
    name: str, tools: list[Tool], text: str, tokenizer: Tokenizer, context: GrammarContext
) -> None:
    grammar = FORMATS[name].grammar(tools, "auto")
    assert grammar is not None
    assert _written(tokenizer, context, grammar, text) == text

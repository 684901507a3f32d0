"""Random walks through the masks of the suite's schemas: every one can be closed, and is valid."""

import json
import random
from typing import Any

import numpy as np
import pytest
from jsonschema import Draft202012Validator

from pyengine._core import CompiledGrammar, GrammarContext, Vocabulary, compile_grammar
from tests.grammar.schema_suite import read
from tests.reference import SCHEMA_SUITE, fetched

PATIENCE = 120.0
WALKS = 4
# Tokens beyond those of the shortest answer.
SPARE = 24


class Walker:
    """Draws tokens from masks within a budget, as a request that is to be closed does."""

    def __init__(self) -> None:
        text = fetched("tokenizers/qwen2.json").read_text(encoding="utf-8")
        self.vocabulary = Vocabulary.from_tokenizer_json(text)
        self.end = json.loads(text)["added_tokens"][-1]["id"]
        self.context = GrammarContext.from_tokenizer_json(text, [self.end], len(self.vocabulary))
        self.mask = np.zeros(self.context.mask_words, dtype=np.uint32)

    def compiled(self, schema: Any, key_order: str = "schema") -> CompiledGrammar | None:
        description = {"kind": "json_schema", "schema": schema, "key_order": key_order}
        try:
            return compile_grammar(self.context, json.dumps(description).encode(), PATIENCE)
        except ValueError:
            return None

    def walk(self, grammar: CompiledGrammar, draws: random.Random) -> list[int]:
        """The tokens of an answer, of at most ``SPARE`` more than the shortest has."""
        state = grammar.start()
        known = state.closing_tokens()
        assert known is not None
        taken: list[int] = []
        budget = len(known) + SPARE
        while len(known) + len(taken) < budget and not state.is_terminated:
            state.fill_mask(self.mask)
            bits = np.unpackbits(self.mask.view(np.uint8), bitorder="little")
            token = int(draws.choice(np.flatnonzero(bits)))
            if token == self.end:
                break
            assert state.advance(token)
            further = state.closing_tokens()
            assert further is not None, self.text([*taken, token])
            if len(taken) + 1 + len(further) > budget:
                break
            taken, known = [*taken, token], further
        answer = taken + known
        whole = grammar.start()
        assert all(map(whole.advance, [*answer, self.end])), self.text(answer)
        return answer

    def text(self, tokens: list[int]) -> str:
        return b"".join(self.vocabulary.token_bytes(token) for token in tokens).decode()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("key_order", ["schema", "any"])
def test_every_walk_is_valid_and_can_be_closed(key_order: str) -> None:
    walker, walked = Walker(), 0
    for group in read(SCHEMA_SUITE):
        grammar = walker.compiled(group.schema, key_order)
        if grammar is None:
            continue
        validator = Draft202012Validator(group.schema)
        for seed in range(WALKS):
            answer = walker.text(walker.walk(grammar, random.Random(seed)))
            value = json.loads(answer)
            # Python's regular expressions, which the validator takes, have no classes of Unicode.
            assert "p{" in json.dumps(group.schema) or validator.is_valid(value), (group, answer)
            walked += 1
    assert walked > 1200

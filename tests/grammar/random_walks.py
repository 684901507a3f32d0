"""Random walks through a grammar, which must not come to a dead end."""

import json
import random

from jsonschema import Draft202012Validator

from pyengine._core import CompiledGrammar
from tests.grammar.test_grammar import demo


def walk(
    compiled: CompiledGrammar, validator: Draft202012Validator, walks: int, steps: int
) -> None:
    """Take tokens at random, mostly short ones, in each walk ``steps`` more than in the one before.

    Masks must always leave a way on, and each walk must be closed by an answer that is valid.
    """
    chance, tokenizer = random.Random(5), demo().tokenizer
    for number in range(walks):
        state, ids = compiled.start(), []
        for _ in range(steps * (number + 1)):
            allowed = sorted(demo().allowed(state) - set(demo().ends))
            if not allowed:
                break
            some = chance.sample(allowed, min(3, len(allowed)))
            token = min(some, key=lambda token: len(tokenizer.decode([token])))
            assert state.advance(token)
            ids.append(token)
        closing = state.closing_tokens()
        assert closing is not None, tokenizer.decode(ids)
        assert all(map(state.advance, closing))
        text = tokenizer.decode(ids + closing)
        assert validator.is_valid(json.loads(text)), text

"""GBNF as llama.cpp's files write it, and grammars that no answer could end."""

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidRequestError
from pyengine.grammar import ebnf
from tests.answers import matches

TERMS = 'root ::= factor(("*" | "/")factor)*\nfactor ::= [0-9]+ | "(" root ")"'
# White space takes the line end, which then never comes.
GREEDY = 'root ::= x+ "\\n"\nx ::= "a" ws | "(" x ")" ws\nws ::= [ \\t\\n]*'


def test_a_rule_may_stand_before_a_group_without_a_space() -> None:
    assert matches(ebnf(TERMS), "2*(10/5)")
    assert not matches(ebnf(TERMS), "2*")


@pytest.mark.parametrize("source", ['root ::= "a" root', GREEDY, 'root ::= "a" x\nx ::= root | x'])
async def test_a_grammar_that_never_ends_is_refused(source: str) -> None:
    async with AsyncEngine(device="simulated", mode="server") as engine:
        with pytest.raises(InvalidRequestError, match="no text that it allows ever ends"):
            await engine.generate("Go", SamplingParams(max_tokens=4), grammar=ebnf(source))
        ends = await engine.generate("Go", SamplingParams(max_tokens=400), grammar=ebnf(TERMS))
    assert ends.finish_reason in ("stop", "length")

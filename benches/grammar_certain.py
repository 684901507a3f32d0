"""How many tokens a grammar allows alone, and how many of those are sampled all the same."""

import json
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from benches.grammar_workloads import workloads
from pyengine._core import CompiledGrammar, GrammarContext, GrammarState, compile_grammar
from tests.schemas import SCHEMAS


def figures(context: GrammarContext, tokenizer: Tokenizer) -> dict[str, int]:
    """Of the texts of the bench: tokens, the certain ones, and their runs. Of those grammars and
    the schemas of the tests: how many there are, and how many begin with a certain token.
    """
    mask = np.zeros(context.mask_words, dtype=np.uint32)

    def compiled(kind: str, spec: Any) -> CompiledGrammar:
        key = {"json_schema": "schema", "choice": "choices", "regex": "pattern"}[kind]
        return compile_grammar(context, json.dumps({"kind": kind, key: spec}).encode())

    def is_certain(state: GrammarState) -> bool:
        state.fill_mask(mask)
        return int(np.bitwise_count(mask).sum()) == 1

    grammars = [compiled("json_schema", schema) for schema in SCHEMAS.values()]
    out = {"tokens": 0, "certain": 0, "runs": 0}
    for work in workloads():
        grammars.append(compiled(work.kind, work.spec))
        state, before = grammars[-1].start(), False
        for token in tokenizer.encode(work.text, add_special_tokens=False).ids:
            certain = is_certain(state)
            out["tokens"] += 1
            out["certain"] += certain
            out["runs"] += certain and not before
            before = certain
            if not state.advance(token):
                raise RuntimeError(f"{work.name}: a token of the text was not allowed")
    first = sum(is_certain(grammar.start()) for grammar in grammars)
    return {**out, "grammars": len(grammars), "begin_certain": first}

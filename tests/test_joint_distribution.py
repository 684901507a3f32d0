"""Three tokens of an answer, through the engine with everybody drafting: as the model has them.

A random Llama of six tokens, so that all answers can be listed. Every rule has thousands of
requests with seeds of their own; what they answer is held against exact probabilities, which are
transformers' logits and the rules by their definitions, in float64.
"""

import asyncio
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import Grammar, regex
from pyengine.settings.choices import Proposer
from tests.model.draws import Floats, assert_drawn_from, exact
from tests.models import random_llama
from tests.test_penalty_rules import penalized

VOCABULARY = 6
PROMPT = [0, 1, 2, 3, 0, 1, 2, 4, 0, 1, 2, 3, 0, 1]
# The first token of an answer comes with the prompt and has no draft: the three are those behind.
LENGTH = 4
REQUESTS = 2000
SEEDS = 8  # of each rule in a wave
ALL: tuple[Proposer, ...] = ("forced", "prediction", "ngram", "draft_model")
BAD_WORDS = ("ab", "d")
SPELLED = [[0, 1], [3]]
EDITS: dict[str, Any] = {
    "presence_penalty": 0.7,
    "frequency_penalty": 0.6,
    "repetition_penalty": 1.3,
    "logit_bias": {1: 0.9, 4: -1.5},
}
KEPT: dict[str, Any] = {"temperature": 1.3, "top_k": 5, "top_p": 0.95, "min_p": 0.03}
# The rules that :func:`exact` takes.
CUTS = (
    "temperature", "top_k", "top_p", "min_p", "typical_p", "top_n_sigma", "dynatemp_range",
    "dynatemp_exponent", "xtc_probability", "xtc_threshold",
)  # fmt: skip
# What follows an a is forced.
PATTERN = r"(aed|b[b-e][a-d]|c[c-e][a-d])[a-d]"

RULES: dict[str, tuple[dict[str, Any], str | None]] = {
    "plain": ({}, None),
    "temperature": ({"temperature": 1.6}, None),
    "top-k": ({"top_k": 3}, None),
    "top-p": ({"top_p": 0.8}, None),
    "min-p": ({"min_p": 0.15}, None),
    "typical-p": ({"typical_p": 0.6}, None),
    "top-n-sigma": ({"top_n_sigma": 1.2}, None),
    "dynamic temperature": ({"dynatemp_range": 0.8, "dynatemp_exponent": 2.0}, None),
    "xtc": ({"xtc_probability": 0.6, "xtc_threshold": 0.12}, None),
    "what is kept": (KEPT, None),
    "presence": ({"presence_penalty": 1.5}, None),
    "frequency": ({"frequency_penalty": 1.2}, None),
    "repetition": ({"repetition_penalty": 1.7}, None),
    "dry": ({"dry_multiplier": 0.8, "dry_allowed_length": 1}, None),
    "allowed tokens": ({"allowed_token_ids": (0, 1, 3, 4)}, None),
    "bias": ({"logit_bias": {0: 1.5, 2: -2.0}}, None),
    "bad words": ({"bad_words": BAD_WORDS}, None),
    "grammar": ({}, PATTERN),
    "allowed tokens, and a grammar": ({"allowed_token_ids": (1, 2, 3, 4)}, PATTERN),
    "penalties": (EDITS, None),
    "all": (EDITS | KEPT | {"bad_words": BAD_WORDS}, None),
    "all but bad words, and a grammar": (EDITS | KEPT, PATTERN),
}


def allowed(pattern: str | None, before: Sequence[int]) -> np.ndarray[Any, Any]:
    """Which tokens may follow ``before`` under :data:`PATTERN`, or under none."""
    if pattern is None:
        return np.ones(VOCABULARY, bool)
    letters = {0, 1, 2, 3}
    if not before:
        letters = {0, 1, 2}
    elif len(before) == 1:
        letters = set(range(before[0], 5)) if before[0] else {4}
    elif len(before) == 2 and before[0] == 0:
        letters = {3}
    return np.isin(np.arange(VOCABULARY), list(letters))


@torch.inference_mode()
def joint(model: LlamaForCausalLM, rules: dict[str, Any], pattern: str | None) -> Floats:
    """Exact probabilities of the last three tokens, as numbers in base six."""
    params = SamplingParams(**rules)
    words = SPELLED if params.bad_words else []
    kept = {name: getattr(params, name) for name in CUTS}
    among = range(VOCABULARY) if params.allowed_token_ids is None else params.allowed_token_ids
    whole: Floats = np.ones(1)
    for length in range(LENGTH):
        texts = list(itertools.product(range(VOCABULARY), repeat=length))
        tokens = torch.tensor([PROMPT + list(text) for text in texts])
        logits = model(tokens).logits[:, -1].double().numpy()
        table = np.zeros((len(texts), VOCABULARY))
        for at in np.flatnonzero(whole):
            text = list(texts[at])
            row = penalized(logits[at].copy(), PROMPT, text, params, words)
            possible = allowed(pattern, text) & np.isin(np.arange(VOCABULARY), among)
            table[at] = exact(row, **kept, allowed=possible)
        whole = (whole[:, None] * table).reshape(-1)
    sums: Floats = whole.reshape(VOCABULARY, -1).sum(axis=0)
    return sums


def question(seed: int, rules: dict[str, Any], pattern: str | None) -> dict[str, Any]:
    """A request of a rule; what its client predicts is right now and then."""
    grammar: Grammar | None = None if pattern is None else regex(pattern)
    draws = random.Random(seed)
    return {
        "params": SamplingParams(seed=seed, max_tokens=LENGTH, ignore_eos=True, **rules),
        "grammar": grammar,
        "prediction": [draws.randrange(VOCABULARY) for _ in range(LENGTH)] if seed % 3 else None,
    }


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, LlamaForCausalLM]:
    """A model and one that drafts for it, which is right about every other time."""
    folder, draft = tmp_path_factory.mktemp("model"), tmp_path_factory.mktemp("draft")
    shape = {"vocab_size": VOCABULARY, "initializer_range": 0.12}
    model = random_llama(folder, seed=5, **shape)
    random_llama(draft, seed=6, num_hidden_layers=1, **shape)
    return folder, draft, model


@pytest.mark.slow
async def test_three_tokens_have_their_joint_distribution(
    models: tuple[Path, Path, LlamaForCausalLM],
) -> None:
    folder, draft, model = models
    drawn: dict[str, list[int]] = {name: [] for name in RULES}
    async with AsyncEngine(
        folder,
        draft_model=str(draft),
        speculation=ALL,
        _adaptive_drafts=False,
        max_draft=3,
        max_sequences=SEEDS * len(RULES),
        prefill_beside_decodes=SEEDS * len(RULES) * len(PROMPT),
        kv_cache_mib=8,
    ) as engine:
        for first in range(0, REQUESTS, SEEDS):
            # Rules share their steps, and all of a wave decode together.
            asked = [(name, seed) for name in RULES for seed in range(first, first + SEEDS)]
            answers = await asyncio.gather(
                *(engine.generate(PROMPT, **question(seed, *RULES[name])) for name, seed in asked)
            )
            for (name, _), answer in zip(asked, answers, strict=True):
                _, *three = answer.token_ids
                drawn[name].append(int(np.polyval(three, VOCABULARY)))
        report = await engine.report()
    for name, (rules, pattern) in RULES.items():
        assert len(drawn[name]) == REQUESTS
        assert_drawn_from(np.array(drawn[name]), joint(model, rules, pattern))
    for proposer in ALL:
        assert report[f"accepted_{proposer}"] > 100, proposer
        # A forced letter is a forced token here.
        wrong = report[f"drafted_{proposer}"] - report[f"accepted_{proposer}"]
        assert proposer == "forced" or wrong > 30, proposer

"""Penalties, biases and bad words through the engine: what they are by their definition."""

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import InvalidRequestError
from pyengine.grammar import regex
from tests.models import random_llama

RULES: dict[str, dict[str, Any]] = {
    "presence": {"presence_penalty": 1.5},
    "frequency": {"frequency_penalty": 0.7},
    "reward": {"frequency_penalty": -0.4},
    "repetition": {"repetition_penalty": 1.6},
    "bias": {"logit_bias": {5: 4.0, 17: -3.5, 44: 2.25}},
    "bad words": {"bad_words": (">P", "Z", "_o", "D4")},
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1, "dry_sequence_breakers": ()},
    "dry, near": {"dry_multiplier": 3.0, "dry_allowed_length": 1, "dry_penalty_last_n": 12},
    "all": {
        "dry_multiplier": 0.7,
        "dry_allowed_length": 1,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.2,
        "repetition_penalty": 1.2,
        "logit_bias": {9: 1.0, 65: -100.0},
        "bad_words": (">", "b", "!_"),
    },
}
TOKENS = 40


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, random_llama(folder, seed=3)


def penalized(
    logits: np.ndarray[Any, Any],
    prompt: list[int],
    answer: list[int],
    params: SamplingParams,
    words: Any,
    breakers: Collection[int] = (),
) -> np.ndarray[Any, Any]:
    """The rules by their definitions, one token after the other."""
    for token in set(prompt + answer):
        factor = params.repetition_penalty
        logits[token] = logits[token] / factor if logits[token] > 0 else logits[token] * factor
    for token in set(answer):
        logits[token] -= params.presence_penalty + params.frequency_penalty * answer.count(token)
    for token, bias in params.logit_bias.items():
        logits[token] += bias
    known = prompt + answer
    for token, length in repeated(known[-params.dry_penalty_last_n :], breakers).items():
        if params.dry_multiplier and length >= params.dry_allowed_length:
            growth = length - params.dry_allowed_length
            logits[token] -= params.dry_multiplier * params.dry_base**growth
    for *before, last in words:
        if known[len(known) - len(before) :] == before:
            logits[last] = -np.inf
    return logits


def repeated(known: list[int], breakers: Collection[int]) -> dict[int, int]:
    """How long the sequence is that each token would repeat: of all that end before that token."""
    lengths: dict[int, int] = {}
    for at in range(1, len(known)):
        length = 0
        while length < at and known[at - 1 - length] == known[-1 - length] not in breakers:
            length += 1
        if length and known[at] not in breakers:
            lengths[known[at]] = max(length, lengths.get(known[at], 0))
    return lengths


@torch.inference_mode()
def defined(
    model: LlamaForCausalLM,
    prompt: list[int],
    params: SamplingParams,
    words: Any,
    breakers: Collection[int] = (),
) -> list[int]:
    """What the model says greedily."""
    answer: list[int] = []
    for _ in range(TOKENS):
        logits = model(torch.tensor([prompt + answer])).logits[0, -1].double().numpy().copy()
        row = penalized(logits, prompt, answer, params, words, breakers)
        answer.append(int(row.argmax()))
    return answer


@pytest.mark.parametrize("rules", RULES.values(), ids=list(RULES))
async def test_greedy_answers_are_those_of_the_definition(
    llama: tuple[Path, LlamaForCausalLM], rules: dict[str, Any]
) -> None:
    folder, model = llama
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, **rules)
    prompts = [[(7 * i * i + 3 * j) % 256 for j in range(5 + 9 * i)] for i in range(4)]
    async with AsyncEngine(folder, max_sequences=3, prefill_chunk=8, max_draft=4) as engine:
        spelled = [
            engine.tokenizer.encode(prefix + word)
            for word in params.bad_words
            for prefix in ("", " ")
        ]
        breakers = {
            token
            for token in range(engine.tokenizer.vocab_size)
            for text in params.dry_sequence_breakers
            if text.encode() in engine.tokenizer.token_bytes(token)
        }
        answers = await asyncio.gather(*(engine.generate(p, params) for p in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        assert answer.token_ids == defined(model, prompt, params, spelled, breakers)
    plain = SamplingParams()
    assert [a.token_ids for a in answers] != [defined(model, p, plain, ()) for p in prompts]


QUESTION = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"


def requests(tokens: int = 60) -> list[tuple[str, SamplingParams]]:
    """Every rule, greedily and sampled, on text that repeats itself."""
    return [
        (
            QUESTION.format(f"Count from {index} to 40, then from {index} to 40 again."),
            SamplingParams(
                temperature=index % 2 * 0.8, seed=index, max_tokens=tokens, ignore_eos=True, **rules
            ),
        )
        for index, rules in enumerate([*RULES.values()] * 2)
    ]


async def ask(
    asked: Sequence[tuple[str, SamplingParams]], **config: Any
) -> tuple[list[list[int]], dict[str, int]]:
    async with AsyncEngine(**({"max_sequences": 8} | config)) as engine:
        answers = await asyncio.gather(
            *(engine.generate(prompt, params, prediction=prompt) for prompt, params in asked)
        )
        return [answer.token_ids for answer in answers], await engine.report()


async def test_no_draft_changes_a_token() -> None:
    wanted, _ = await ask(requests(), speculation=())
    sources = ("forced", "prediction", "ngram", "draft_model")
    answers, report = await ask(
        requests(), speculation=sources, draft_model="demo", _adaptive_drafts=False, max_draft=5
    )
    assert answers == wanted
    assert report["accepted_ngram"] > 0


async def test_neither_preemption_nor_small_steps_change_a_token() -> None:
    wanted, report = await ask(requests(120))
    assert report["preemptions"] == 0
    tight, report = await ask(requests(120), num_blocks=40, block_size=8, max_tokens_per_step=16)
    assert report["preemptions"] > 0
    assert tight == wanted


async def test_tokens_from_before_a_restart_count() -> None:
    """A request that goes on has the tokens that it would have had."""
    async with AsyncEngine() as engine:
        for prompt, params in requests():
            whole = await engine.generate(prompt, params)
            generation = engine.generate(prompt, params)
            actor = generation._actor
            async for _ in generation:
                if len(actor.tokens) >= 20:
                    break
            generation.abort()
            assert engine.connection.frontend is not None
            again, before = actor.continued(), [*actor.tokens]  # those on their way come yet
            fresh = engine.connection.frontend.submit(
                type(again)(
                    **{f: getattr(again, f) for f in again.__struct_fields__}
                    | {"key": engine.connection.frontend.next_key()}
                )
            )
            completion = await fresh.completion()
            assert [*before, *completion.token_ids] == whole.token_ids


async def test_a_grammar_and_bad_words_hold_together() -> None:
    async with AsyncEngine() as engine:
        params = SamplingParams(temperature=0, max_tokens=20, bad_words=("7", "3"))
        answer = await engine.generate("One: ", params, grammar=regex("[0-9]{6}"))
    assert len(answer.text) == 6
    assert answer.text.isdigit()
    assert not {"7", "3"} & set(answer.text)


@pytest.mark.parametrize("constrained", [False, True])
async def test_on_the_simulated_device_what_is_forbidden_does_not_come(constrained: bool) -> None:
    """It has steps in flight while the tokens of the one before are unknown."""
    grammar = regex("[a-e]{90}") if constrained else None
    async with AsyncEngine(device="simulated", simulated_step_ms=0.2) as engine:
        free = await engine.generate("x", SamplingParams(max_tokens=90, seed=1), grammar=grammar)
        common = max(set(free.token_ids[:-1]), key=free.token_ids.count)
        banned = engine.tokenizer.decode([common])
        params = SamplingParams(max_tokens=90, seed=1, bad_words=(banned,), frequency_penalty=1)
        answers = await asyncio.gather(
            *(engine.generate("x", params, grammar=grammar) for _ in range(3))
        )
    for answer in answers:
        assert common not in answer.token_ids
        assert len(answer.token_ids) >= 40


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"presence_penalty": 2.5}, "'presence_penalty' must be between -2 and 2"),
        ({"frequency_penalty": float("nan")}, "'frequency_penalty' must be between"),
        ({"repetition_penalty": 0.0}, "'repetition_penalty' must be from 0.01"),
        ({"logit_bias": {5: 101.0}}, "a bias between -100 and 100"),
        ({"logit_bias": {-1: 1.0}}, "token ids of 0 or more"),
        ({"logit_bias": {99_999: 1.0}}, "must name tokens from 0 to"),
        ({"logit_bias": {"a": 1.0}}, "'logit_bias'"),
        ({"logit_bias": dict.fromkeys(range(1025), 1.0)}, "at most 1024 tokens"),
        ({"allowed_token_ids": ()}, "at least one token id"),
        ({"allowed_token_ids": (3, 99_999)}, "must name tokens from 0 to"),
        ({"dry_multiplier": -1.0}, "'dry_multiplier' must be between 0 and 100"),
        ({"dry_base": 0.9}, "'dry_base' must be from 1"),
        ({"dry_penalty_last_n": -2}, r"-1 \(all tokens\) or more"),
        ({"dry_sequence_breakers": ("",)}, "at most 64 strings of 1"),
        ({"bad_words": ("",)}, "strings of 1 to 256"),
        ({"bad_words": ("a",) * 129}, "at most 128 strings"),
        ({"bad_words": ("a" * 1000,) * 3}, "strings of 1 to 256"),
    ],
)
async def test_option_out_of_range_is_named(given: dict[str, Any], said: str) -> None:
    async with AsyncEngine(device="simulated") as engine:
        with pytest.raises(InvalidRequestError, match=said) as caught:
            engine.generate("x", SamplingParams(**given))
    assert caught.value.param == next(iter(given))
    assert len(str(caught.value)) < 500

"""Same seed, same tokens: alone, in a batch of 64, after preemption, after a restart."""

import asyncio
import os
import signal
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from tests.test_penalty_rules import ask
from tests.test_placement import engine_process

RULES: dict[str, dict[str, Any]] = {
    "plain": {},
    "typical_p": {"typical_p": 0.7},
    "top_n_sigma": {"top_n_sigma": 1.5, "temperature": 1.4},
    "dynamic temperature": {"dynatemp_range": 0.9, "dynatemp_exponent": 0.5},
    "xtc": {"xtc_probability": 0.7, "xtc_threshold": 0.1},
    "dry": {"dry_multiplier": 1.5, "dry_allowed_length": 1},
    "allowed_token_ids": {"allowed_token_ids": tuple(range(40, 300))},
    # Tokens that the plain answer has early end this one, but not before the 20th.
    "min_tokens": {"min_tokens": 20, "stop_token_ids": tuple(range(0, 2048, 16))},
    "all": {
        "top_n_sigma": 2.5, "dynatemp_range": 0.5, "xtc_probability": 0.5, "xtc_threshold": 0.05,
        "dry_multiplier": 0.8, "top_p": 0.98, "min_p": 0.001, "typical_p": 0.99,
        "allowed_token_ids": tuple(range(20, 400)), "frequency_penalty": 0.2,
    },
}  # fmt: skip


def asked(count: int, tokens: int) -> list[tuple[str, SamplingParams]]:
    """So many requests, each rule in turn, each with a seed of its own."""
    rules = list(RULES.values())
    return [
        (
            f"Count from {index % 7} to 40, then again from {index % 7} to 40.",
            SamplingParams(
                seed=index, max_tokens=tokens, ignore_eos=True, **rules[index % len(rules)]
            ),
        )
        for index in range(count)
    ]


async def test_each_rule_changes_what_it_is_for() -> None:
    """No rule is without effect: other tokens than the plain ones, of the same seed."""
    warm = [{"temperature": 1.2} | rules for rules in RULES.values()]
    params = [SamplingParams(seed=5, max_tokens=60, ignore_eos=True, **rules) for rules in warm]
    answers, _ = await ask(
        [("The cat sat on the mat. The cat sat on the", each) for each in params]
    )
    assert len({tuple(answer) for answer in answers}) == len(RULES)
    assert set(answers[6]) <= set(range(40, 300))


async def test_a_request_has_its_tokens_in_whatever_batch() -> None:
    requests = asked(64, 24)
    together, report = await ask(requests, max_sequences=64)
    assert report["held"] == 0
    async with AsyncEngine(max_sequences=1) as engine:
        for at in range(0, 64, 7):
            prompt, params = requests[at]
            assert (await engine.generate(prompt, params)).token_ids == together[at], at


async def test_after_preemption() -> None:
    # Two of them are more than the cache holds, and all are there before one has ended.
    requests = asked(16, 150)
    wanted, report = await ask(requests)
    assert report["preemptions"] == 0
    tight, report = await ask(requests, num_blocks=40, block_size=8, max_tokens_per_step=16)
    assert report["preemptions"] > 0
    assert tight == wanted


async def test_with_drafts() -> None:
    requests = asked(16, 40)
    wanted, _ = await ask(requests, speculation=())
    sources = ("prediction", "ngram", "draft_model")
    answers, report = await ask(
        requests, speculation=sources, draft_model="demo", _adaptive_drafts=False, max_draft=5
    )
    assert answers == wanted
    assert report["accepted_draft_model"] > 0


@pytest.mark.slow
async def test_after_a_restart() -> None:
    """The engine's process dies in the middle of all answers, and another one goes on."""
    requests = asked(16, 120)
    wanted, _ = await ask(requests)
    async with AsyncEngine(placement="process", max_sequences=8) as engine:
        generations = [engine.generate(prompt, params) for prompt, params in requests]
        first = aiter(generations[0])
        await anext(first)
        os.kill(engine_process(engine), signal.SIGKILL)
        answers = await asyncio.gather(*generations[1:])
    assert [answer.token_ids for answer in answers] == wanted[1:]

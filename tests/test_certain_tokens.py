"""Tokens that a grammar allows alone are not sampled, and are those that sampling would choose."""

from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import regex
from tests.answers import answers, assert_nothing_is_left
from tests.torch_devices import KINDS, use_torch

# No token of the demo model has several bytes of these signs: many a byte may come alone.
SIGNS = regex("(?:\u2603\u2699|\u2602\u2696|\u265e\u265f){8}")
QUESTION = [{"role": "user", "content": "Show me signs."}]

SETTINGS: dict[str, dict[str, Any]] = {
    "cpu": {},
    "simulated": {"device": "simulated", "simulated_step_ms": 0.2},
    "drafts": {"speculation": ("forced", "ngram"), "_adaptive_drafts": False},
}


async def compare(**settings: Any) -> None:
    async def ask(logprobs: int | None) -> list[tuple[int, ...]]:
        asked = (
            engine.chat(
                QUESTION,
                SamplingParams(seed=seed, max_tokens=40 + seed, logprobs=logprobs),
                grammar=SIGNS,
            )
            for seed in range(6)
        )
        return [tuple(answer.token_ids) for answer in await answers(asked)]

    async with AsyncEngine(**settings) as engine:
        # Where log-probabilities are wanted, every token is sampled.
        sampled = await ask(logprobs=0)
        assert (await engine.report())["certain_tokens"] == 0
        assert await ask(logprobs=None) == sampled
        assert (await engine.report())["certain_tokens"] > 0
        await assert_nothing_is_left(engine)


@pytest.mark.parametrize("name", SETTINGS)
async def test_certain_tokens_are_those_that_would_be_sampled(name: str) -> None:
    await compare(**SETTINGS[name])


@pytest.mark.parametrize("kind", KINDS)
async def test_on_torch_devices(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runners = use_torch(monkeypatch, kind)
    await compare()
    assert runners

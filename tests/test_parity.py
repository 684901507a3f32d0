"""Greedy tokens equal transformers', whatever the engine does to a request on its way."""

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from tests.models import VOCAB_SIZE, greedy, random_llama

PROMPTS = 64
TOKENS = 96  # more than admission keeps room for (64), so that a small cache preempts

MODELS: dict[str, dict[str, Any]] = {
    "grouped-queries": {},
    "one-kv-head-tied": {"num_key_value_heads": 1, "tie_word_embeddings": True, "hidden_size": 96},
    "llama3-rope": {
        "num_key_value_heads": 4,
        "head_dim": 32,
        "num_hidden_layers": 3,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 10000.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
}

SETTINGS: dict[str, dict[str, Any]] = {
    "prefix-cache": {},
    "no-prefix-cache": {"prefix_cache": False},
    "chunks-of-16": {"prefill_chunk": 16},
    "chunks-of-16-no-prefix-cache": {"prefill_chunk": 16, "prefix_cache": False},
    "preemption": {"num_blocks": 48},
    "preemption-no-prefix-cache": {"num_blocks": 48, "prefix_cache": False, "prefill_chunk": 16},
}


def mixed_prompts() -> list[list[int]]:
    """Prompts of 1 to 200 tokens; every third shares a prefix with others."""
    rng = random.Random(0)
    prefix = [rng.randrange(256) for _ in range(70)]
    return [
        (prefix if index % 3 == 0 else [])
        + [rng.randrange(256) for _ in range(rng.choice((1, 5, 16, 17, 40, 128)))]
        for index in range(PROMPTS)
    ]


@pytest.fixture(scope="module", params=MODELS)
def reference(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, list[list[int]]]:
    """A random model's folder, and what transformers answers to each prompt."""
    folder = tmp_path_factory.mktemp(request.param)
    model = random_llama(folder, **MODELS[request.param])
    return folder, greedy(model, mixed_prompts(), TOKENS)


@pytest.mark.parametrize("setting", SETTINGS)
async def test_greedy_tokens_equal_transformers(
    reference: tuple[Path, list[list[int]]], setting: str
) -> None:
    folder, expected = reference
    params = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    async with AsyncEngine(
        folder, mode="server", max_sequences=PROMPTS, kv_cache_mib=16, **SETTINGS[setting]
    ) as engine:
        generations = [engine.generate(prompt, params) for prompt in mixed_prompts()]
        answers = await asyncio.gather(*generations)
        report = await engine.report()
    assert [answer.token_ids for answer in answers] == expected
    assert report["free"] + report["cached"] == report["num_blocks"]
    assert report["running"] == report["waiting"] == 0
    if "num_blocks" in SETTINGS[setting]:
        assert report["preemptions"] > 0
    assert all(token < VOCAB_SIZE for answer in answers for token in answer.token_ids)


async def test_a_seed_gives_the_same_tokens_in_any_company(
    reference: tuple[Path, list[list[int]]],
) -> None:
    folder, _ = reference
    params = SamplingParams(temperature=1.0, top_p=0.9, seed=7, max_tokens=20, ignore_eos=True)
    noise = SamplingParams(temperature=1.5, max_tokens=30, ignore_eos=True)
    async with AsyncEngine(folder, max_sequences=16, kv_cache_mib=8) as engine:
        alone = await engine.generate([1, 2, 3], params)
        company = [engine.generate([5, 6, index], noise) for index in range(10)]
        together = await engine.generate([1, 2, 3], params)
        await asyncio.gather(*company)
    assert alone.token_ids == together.token_ids

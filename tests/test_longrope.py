"""LongRoPE: a sequence has the short factors up to the length of training, the long ones beyond."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Phi3Config

from pyengine import AsyncEngine, SamplingParams
from pyengine.model.spec import describe
from pyengine.settings.config import EngineConfig
from tests.models import mixed_prompts, random_model
from tests.torch_devices import use_torch

TRAINED, TOKENS = 48, 24
CONFIG: dict[str, Any] = {
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 192,
    "original_max_position_embeddings": TRAINED,
    "rope_parameters": {
        "rope_type": "longrope",
        "rope_theta": 10_000.0,
        "short_factor": [1.0, 1.1, 1.2, 1.3, 1.5, 1.7, 1.8, 2.0],
        "long_factor": [4.0, 5.0, 6.0, 9.0, 12.0, 16.0, 20.0, 24.0],
        "original_max_position_embeddings": TRAINED,
    },
}
START = mixed_prompts()[5][:40]
PROMPTS = [
    START[:12],  # stays short
    START[:30],  # grows long
    [*START, *range(8)],  # as long as a short one can be
    [*START, *range(9)],  # long from its first token on, and begins as the short ones do
    [*START, *range(40)],
]


@torch.inference_mode()
def by_length(model: Any, prompt: list[int]) -> list[int]:
    """What transformers says without a cache: each token by the length that the sequence has."""
    tokens = list(prompt)
    for _ in range(TOKENS):
        tokens.append(int(model(torch.tensor([tokens])).logits[0, -1].argmax()))
    return tokens[len(prompt) :]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("longrope")


@pytest.fixture(scope="module")
def expected(folder: Path) -> list[list[int]]:
    model = random_model(folder, Phi3Config, seed=3, **CONFIG)
    return [by_length(model, prompt) for prompt in PROMPTS]


async def answers(folder: Path, *, together: bool = False, **config: Any) -> Any:
    rules = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    settings: dict[str, Any] = {"max_sequences": 8, "kv_cache_mib": 8, "speculation": ()}
    async with AsyncEngine(folder, **settings | config) as engine:
        if together:
            done = await asyncio.gather(*(engine.generate(prompt, rules) for prompt in PROMPTS))
        else:
            done = [await engine.generate(prompt, rules) for prompt in PROMPTS]
        report = await engine.report()
    assert report["free"] + report["cached"] == report["num_blocks"]
    return [answer.token_ids for answer in done], done, report


async def test_each_sequence_has_the_factors_of_its_length(
    folder: Path, expected: list[list[int]]
) -> None:
    tokens, done, report = await answers(folder)
    assert tokens == expected
    # What short ones have is found by short ones, what long ones have by long ones.
    cached = [answer.usage.cached_tokens for answer in done]
    assert cached == [0, 0, 16, 48, 48]
    assert report["preemptions"] == 2  # one for each sequence that grew long


@pytest.mark.parametrize(
    "config",
    [
        {"prefill_chunk": 16},
        {"speculation": ("ngram",), "_adaptive_drafts": False, "max_draft": 4},
        {"num_blocks": 12, "kv_cache_mib": None},
        {"prefix_cache": False},
    ],
    ids=["chunks", "drafts", "preempted", "no prefix cache"],
)
async def test_together_they_say_the_same(
    config: dict[str, Any], folder: Path, expected: list[list[int]]
) -> None:
    tokens, _, _ = await answers(folder, together=True, **config)
    assert tokens == expected


async def test_so_they_do_on_a_device_that_runs_behind(
    folder: Path, expected: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch, "overlapping")
    tokens, _, _ = await answers(folder, together=True)
    assert tokens == expected


async def test_a_model_drafts_for_itself_across_the_border(
    folder: Path, expected: list[list[int]]
) -> None:
    config: dict[str, Any] = {"speculation": ("draft_model",), "_adaptive_drafts": False}
    tokens, _, report = await answers(folder, together=True, draft_model=str(folder), **config)
    assert tokens == expected
    assert report["accepted_draft_model"] > 0


@pytest.mark.usefixtures("expected")
def test_a_context_within_that_of_training_has_one_kind(folder: Path) -> None:
    def short(**config: Any) -> int | None:
        return describe(EngineConfig(model=str(folder), **config)).info.short_context

    assert short(kv_cache_mib=8) == TRAINED
    assert short(kv_cache_mib=8, max_context=TRAINED) is None

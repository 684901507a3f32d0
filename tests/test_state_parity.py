"""Engines on models with states: transformers' tokens whole, in chunks, hit, preempted, drafted, in
company, on ranks, and in torch.
"""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from tests.distributed.thread_ranks import thread_runner
from tests.model.hybrids import HYBRIDS
from tests.models import mixed_prompts, random_model
from tests.torch_devices import use_torch

TOKENS = 24
KINDS = ("qwen3.5", "lfm2", "granite 4 h")
SETTINGS: dict[str, Any] = {"max_sequences": 16, "kv_cache_mib": 64, "speculation": ()}


PROMPTS = mixed_prompts()


def families(*quick: str) -> list[Any]:
    """All of them as parameters of a test, slow but for the ``quick`` ones."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in HYBRIDS]


def divided(*quick: str) -> list[Any]:
    """Those that ranks can share: a row of lightning attention is normalized whole."""
    return [each for each in families(*quick) if each.values != ("minimax",)]


def reference(folder: Path, name: str, count: int = TOKENS) -> list[list[int]]:
    """What transformers answers to each prompt; the random model is in ``folder``."""
    kind, own = HYBRIDS[name]
    model = random_model(folder, kind, **own | {"initializer_range": 0.12})
    return [greedy(model, prompt, count) for prompt in PROMPTS]


@torch.inference_mode()
def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """As :func:`tests.models.greedy`, but each token by a pass over all: with their caches, Bamba
    and MiniMax of transformers 5.23 answer otherwise than without.
    """
    tokens = list(prompt)
    for _ in range(count):
        logits = model(torch.tensor([tokens]), use_cache=False).logits[0, -1]
        tokens.append(int(logits.argmax()))
    return tokens[len(prompt) :]


async def answers(
    folder: Path,
    *,
    count: int = TOKENS,
    times: int = 1,
    right: list[list[int]] | None = None,
    **config: Any,
) -> tuple[list[list[int]], dict[str, Any]]:
    """The answers to all prompts at once, the last of ``times``; and the engine's report.

    Of the ``right`` ones all but the tenth token is predicted.
    """
    guesses = [None if right is None else [*each[:9], 0, *each[10:]] for each in right or PROMPTS]
    rules = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    async with AsyncEngine(folder, **SETTINGS | config) as engine:
        for _ in range(times):
            asked = [
                engine.generate(prompt, rules, prediction=guess)
                for prompt, guess in zip(PROMPTS, guesses, strict=True)
            ]
            done = await asyncio.gather(*asked)
        return [answer.token_ids for answer in done], await engine.report()


async def check(folder: Path, expected: list[list[int]]) -> None:
    """That an engine of ``folder`` answers so, in each of the ways that it may compute."""
    whole, _ = await answers(folder)
    assert whole == expected
    chunked, _ = await answers(folder, prefill_chunk=8)
    assert chunked == expected
    hit, report = await answers(folder, times=2)
    assert hit == expected
    assert report["prefix_hits"] > 0
    drafted, report = await answers(
        folder, right=expected, speculation=("prediction",), _adaptive_drafts=False, max_draft=3
    )
    assert drafted == expected
    assert report["drafted_prediction"] > report["accepted_prediction"] > 0


@pytest.mark.parametrize("name", families("qwen3.5"))
async def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    await check(tmp_path, reference(tmp_path, name))


@pytest.mark.slow
@pytest.mark.parametrize("name", KINDS)
async def test_so_they_do_in_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(tmp_path, name)
    use_torch(monkeypatch)
    await check(tmp_path, expected)


@pytest.mark.parametrize("name", divided("qwen3.5"))
async def test_so_they_do_on_two_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = reference(tmp_path, name, 8)
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)
    tokens, _ = await answers(tmp_path, count=8, tensor_parallel=2, device="cpu", threads=1)
    assert tokens == expected


@pytest.mark.parametrize("name", families("qwen3.5"))
async def test_log_probabilities_are_within_a_ten_thousandth(name: str, tmp_path: Path) -> None:
    """Of the prompt's tokens, by one pass of transformers."""
    kind, own = HYBRIDS[name]
    model = random_model(tmp_path, kind, **own | {"initializer_range": 0.08})
    prompt = mixed_prompts()[3]
    with torch.inference_mode():
        scores = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(scores[at, token]) for at, token in enumerate(prompt[1:])]
    rules = SamplingParams(temperature=0, max_tokens=1)
    async with AsyncEngine(tmp_path, **SETTINGS) as engine:
        answer = await engine.generate(prompt, rules, prompt_logprobs=0)
    assert answer.prompt_logprobs is not None
    found = [each.logprob for each in answer.prompt_logprobs[1:] if each is not None]
    assert found == pytest.approx(expected, abs=1e-4)

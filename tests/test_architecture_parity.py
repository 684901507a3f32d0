"""Engines on every architecture: transformers' tokens, on ranks and with drafts; dummy weights."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from tests.distributed.thread_ranks import thread_runner
from tests.model.families import ALL_PARTS, FAMILIES, ONE_OF_EACH, QUICK, families
from tests.models import greedy, mixed_prompts, random_model
from tests.torch_devices import use_torch

TOKENS = 40
MANY = 112
"""More than admission keeps room for (64), so that a small cache preempts."""
SETTINGS: dict[str, Any] = {"prefill_chunk": 16, "max_sequences": 8, "kv_cache_mib": 16}
DRAFTS: dict[str, Any] = {
    "speculation": ("draft_model",),
    "_adaptive_drafts": False,
    "max_draft": 4,
    "count": MANY,
    "num_blocks": 16,
    "kv_cache_mib": None,
}
"""A model drafts for itself, and sequences run out of blocks."""


def reference(folder: Path, name: str, count: int = TOKENS) -> tuple[Path, list[list[int]]]:
    """A random model's folder, and what transformers answers to each prompt."""
    kind, own = FAMILIES[name]
    model = random_model(folder, kind, **own)
    return folder, greedy(model, mixed_prompts(), count)


async def answers(
    folder: Path, *, count: int = TOKENS, **config: Any
) -> tuple[list[list[int]], dict[str, Any]]:
    rules = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
    async with AsyncEngine(folder, **SETTINGS | config) as engine:
        asked = [engine.generate(prompt, rules) for prompt in mixed_prompts()]
        done = await asyncio.gather(*asked)
        return [answer.token_ids for answer in done], await engine.report()


@pytest.mark.parametrize("name", families(*QUICK))
async def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    folder, expected = reference(tmp_path, name)
    tokens, report = await answers(folder)
    assert tokens == expected
    assert report["prefix_hits"] > 0


@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_so_they_do_with_graphs_and_overlap(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = reference(tmp_path, name)
    runners = use_torch(monkeypatch, "overlapping")
    tokens, _ = await answers(folder)
    assert tokens == expected
    assert runners[0].graphs is not None
    assert runners[0].graphs.captures > 1


@pytest.mark.slow
@pytest.mark.parametrize("name", ALL_PARTS)
async def test_so_they_do_on_ranks_with_drafts_and_preempted(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On one model, as most of the time goes to making it."""
    folder, expected = reference(tmp_path, name, MANY)
    preempted = 0
    while not preempted:  # windows leave room, unless the requests come close together
        tokens, report = await answers(folder, **DRAFTS | {"draft_model": str(folder)})
        assert tokens == expected
        assert report["accepted_draft_model"] == report["drafted_draft_model"] > 0
        preempted = report["preemptions"]
    with monkeypatch.context() as patched:
        patched.setattr(ParallelRunner, "start", thread_runner)
        tokens, _ = await answers(folder, tensor_parallel=2, device="cpu", threads=1)
    assert tokens == [answer[:TOKENS] for answer in expected]
    for file in folder.glob("*.safetensors"):
        file.unlink()
    made_up, _ = await answers(folder, load_format="dummy")
    assert made_up != tokens

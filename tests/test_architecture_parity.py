"""Engines on every architecture: transformers' tokens, on ranks and with drafts; dummy weights."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from tests.distributed.thread_ranks import thread_runner
from tests.model.families import FAMILIES, ONE_OF_EACH, QUICK, families
from tests.models import greedy, mixed_prompts, random_model
from tests.torch_devices import use_torch

TOKENS = 40
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
SETTINGS: dict[str, Any] = {"prefill_chunk": 16, "max_sequences": 8, "kv_cache_mib": 16}


def reference(folder: Path, name: str) -> tuple[Path, list[list[int]]]:
    """A random model's folder, and what transformers answers to each prompt."""
    kind, own = FAMILIES[name]
    model = random_model(folder, kind, **own)
    return folder, greedy(model, mixed_prompts(), TOKENS)


async def answers(folder: Path, **config: Any) -> tuple[list[list[int]], dict[str, Any]]:
    async with AsyncEngine(folder, **SETTINGS | config) as engine:
        asked = [engine.generate(prompt, GREEDY) for prompt in mixed_prompts()]
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
@pytest.mark.parametrize("name", FAMILIES)
async def test_so_they_do_on_two_ranks(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)
    folder, expected = reference(tmp_path, name)
    tokens, _ = await answers(folder, tensor_parallel=2, device="cpu", threads=1)
    assert tokens == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_a_model_that_drafts_for_itself_is_always_right(name: str, tmp_path: Path) -> None:
    folder, expected = reference(tmp_path, name)
    tokens, report = await answers(
        folder,
        draft_model=str(folder),
        speculation=("draft_model",),
        _adaptive_drafts=False,
        max_draft=4,
    )
    assert tokens == expected
    assert report["accepted_draft_model"] == report["drafted_draft_model"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
async def test_dummy_weights(name: str, tmp_path: Path) -> None:
    folder, expected = reference(tmp_path, name)
    (folder / "model.safetensors").unlink()
    tokens, _ = await answers(folder, load_format="dummy")
    again, _ = await answers(folder, load_format="dummy")
    assert tokens == again != expected

"""Draft models with windows: their layers lie in the pages of the larger model's cache groups."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.model.cache_groups import CacheGroup, cache_groups, pages_for, slots_of
from pyengine.model.cache_layers import slots_by_layer
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import describe
from pyengine.settings.config import EngineConfig
from tests.model.families import FAMILIES
from tests.model.test_architectures import edit
from tests.model.test_late_device import use_late_device
from tests.models import greedy, mixed_prompts, random_model

TOKENS = 60
FIVE_TO_ONE = [*["sliding_attention"] * 5, "full_attention"]
ITSELF: dict[str, Any] = {
    "speculation": ("draft_model",),
    "_adaptive_drafts": False,
    "max_draft": 3,
    "max_sequences": 4,
    "kv_cache_mib": 4,
    "prefill_chunk": 16,
    "block_size": 4,
    "dtype": "float32",
}


@pytest.fixture(scope="module")
def gemma(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A Gemma 3 with windows of 24 tokens, and what transformers answers to each prompt."""
    folder = tmp_path_factory.mktemp("gemma")
    kind, own = FAMILIES["gemma 3"]
    return folder, greedy(random_model(folder, kind, **own), mixed_prompts(), TOKENS)


async def answers(folder: Path, **config: Any) -> tuple[list[list[int]], dict[str, Any]]:
    rules = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)
    async with AsyncEngine(folder, draft_model=str(folder), **ITSELF | config) as engine:
        done = await asyncio.gather(*(engine.generate(each, rules) for each in mixed_prompts()))
        return [answer.token_ids for answer in done], await engine.report()


@pytest.mark.parametrize("prefix_cache", [True, False])
async def test_a_model_that_drafts_for_itself_is_right(
    prefix_cache: bool, gemma: tuple[Path, list[list[int]]]
) -> None:
    """Without a prefix cache the pages behind a window are gone before the model drafts."""
    folder, expected = gemma
    tokens, report = await answers(folder, prefix_cache=prefix_cache)
    assert tokens == expected
    assert report["accepted_draft_model"] == report["drafted_draft_model"] > 0
    assert report["free"] + report["cached"] == report["num_blocks"]


@pytest.mark.parametrize("attention", ["triton", "flashinfer"])
async def test_draft_is_equal_on_a_late_device(
    attention: str, gemma: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = gemma
    use_late_device(monkeypatch, attention, None)
    tokens, report = await answers(folder, prefix_cache=False, graph_memory_mib=3)
    assert tokens == expected
    # A row's last bits depend on its company in torch, so that a tie may fall either way.
    assert report["accepted_draft_model"] >= 0.99 * report["drafted_draft_model"] > 0


def one_page(info: ModelInfo) -> int:
    """Bytes of a page that holds all layers."""
    return info.block_bytes // slots_of(info.cache_groups) * sum(slots_by_layer(info.layers))


def test_its_layers_share_the_pages_of_the_larger_models_groups(
    gemma: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    """34 layers of 4 heads and 18 of one, both 5:1, as those of Gemma 3's 4B and 270M."""
    folder, _ = gemma
    for name, layers, heads in (("target", 34, 4), ("draft", 18, 1)):
        place = tmp_path / name
        place.mkdir()
        (place / "config.json").write_text((folder / "config.json").read_text())
        (place / "tokenizer.json").write_text("{}")
        edit(
            place,
            num_hidden_layers=layers,
            num_key_value_heads=heads,
            layer_types=(FIVE_TO_ONE * 6)[:layers],
            sliding_window=1024 if name == "target" else 512,
            max_position_embeddings=32_768,
        )
    spec = describe(
        EngineConfig(
            model=str(tmp_path / "target"), draft_model=str(tmp_path / "draft"),
            speculation=("draft_model",), load_format="dummy",
        )
    )  # fmt: skip
    assert spec.draft is not None
    groups, draft = spec.info.cache_groups, spec.draft.info
    assert [len(group.tables) for group in draft.cache_groups] == [1, 6]
    assert slots_of(draft.cache_groups) == 3
    assert draft.cache_groups[0] == CacheGroup("full", ((5, 11, 17),))
    own = spec.info.block_bytes - draft.block_bytes
    assert own == 5 * 4 * draft.block_bytes // 3
    # At 8k tokens the draft model takes an eighth of the cache, not a half.
    held = pages_for(groups, 8192, 16)
    assert held == pages_for(cache_groups(spec.info.layers), 8192, 16)
    assert draft.block_bytes / spec.info.block_bytes < 0.14
    assert one_page(draft) / (own + one_page(draft)) > 0.47

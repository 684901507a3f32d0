"""Kinds of layers: the groups, pages and memory that they get."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pyengine._core import KvAllocator
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.architectures import ARCHITECTURES
from pyengine.model.architectures.decoder import decoder
from pyengine.model.architectures.traits import Traits
from pyengine.model.cache_groups import (
    CacheGroup,
    allocated,
    cache_groups,
    longest_sequence,
    pages_for,
    snapshot_interval,
    tables_of,
)
from pyengine.model.cache_layers import (
    CacheLayer,
    Keys,
    Latent,
    Nothing,
    State,
    shares,
    state_places,
)
from pyengine.model.cpu.pool import Pool
from pyengine.model.dtypes import FLOATS
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import describe, make_layout
from pyengine.model.torch.attention.pool import TorchPool
from pyengine.settings.config import EngineConfig

DELTA = State(channels=96, kernel=4, heads=4, key_dim=8, value_dim=8, key_heads=2, gates=8)
SHORT = State(channels=40, kernel=3)
HYBRID: tuple[CacheLayer, ...] = (DELTA, DELTA, Nothing(), Keys(2, 16), DELTA, Keys(2, 16))


def info_of(
    layers: tuple[CacheLayer, ...], *, dtype: str = "bfloat16", max_draft: int = 3, ranks: int = 1
) -> ModelInfo:
    return ModelInfo(
        name="m",
        folder=Path(),
        architecture="none",
        vocab_size=100,
        max_context=64,
        eos_token_ids=(),
        hidden_size=8,
        num_heads=4,
        dtype=dtype,
        block_size=16,
        block_bytes=0,
        layers=layers,
        cache_groups=cache_groups(layers),
        max_draft=max_draft,
    ).with_states(ranks)


def test_a_latent_is_a_group_up_to_the_allocator() -> None:
    assert cache_groups([Latent(576)] * 3) == (CacheGroup("latent", ((0, 1, 2),)),)
    groups = cache_groups([Keys(1, 8), Latent(16), Keys(1, 8, window=4), Nothing()])
    assert [group.kind for group in groups] == ["full", "latent", "window"]
    assert allocated(groups) == [("full", 1, 0), ("latent", 1, 0), ("window", 1, 4)]
    assert KvAllocator(9, 16, True, allocated(groups)).counts() == (9, 0, 0)


def test_ranks_have_all_latents() -> None:
    whole, half = (info_of((Latent(24), Latent(24)), ranks=ranks) for ranks in (1, 2))
    assert whole.page_bytes() == half.page_bytes(2) == 2 * 24 * 16 * 2
    assert half.block_bytes == 2 * whole.block_bytes


def test_a_model_of_states_alone_has_pages_of_one_state() -> None:
    info = info_of((SHORT, SHORT, Nothing()))
    assert info.cache_groups == (CacheGroup("full", ()), CacheGroup("state", (), 1))
    assert info.page_bytes() == info.block_bytes == info.state_bytes() > 0
    assert longest_sequence(info.cache_groups, 5, 16) is None
    assert pages_for(info.cache_groups, 1000, 16) == 1
    KvAllocator(1, 16, True, allocated(info.cache_groups))


def test_a_state_takes_the_pages_that_its_floats_fill() -> None:
    info = info_of(HYBRID)
    page = info.page_bytes()
    # Two layers, keys and values, two heads, 16 elements, 16 tokens, two bytes.
    assert page == 2 * 2 * 2 * 16 * 16 * 2
    assert info.state_bytes() == 4 * 3 * DELTA.floats(3)
    assert (info.state_pages - 1) * page < info.state_bytes() <= info.state_pages * page
    assert info.cache_groups[-1] == CacheGroup("state", (), info.state_pages)
    assert info_of(HYBRID, max_draft=0).state_bytes() < info.state_bytes()


def test_ranks_have_a_share_of_pages_and_states() -> None:
    whole, half = info_of(HYBRID), info_of(HYBRID, ranks=2)
    assert half.state_pages == whole.state_pages
    assert 2 * half.page_bytes(2) == half.block_bytes == whole.block_bytes
    one = shares(HYBRID, 2)[0]
    assert one == State(
        channels=48, kernel=4, heads=2, key_dim=8, value_dim=8, key_heads=1, gates=4
    )


STATES = st.builds(
    State,
    channels=st.integers(0, 70),
    kernel=st.integers(1, 4),
    heads=st.integers(0, 4),
    key_dim=st.integers(1, 9),
    value_dim=st.integers(1, 9),
    gates=st.integers(0, 9),
)
OF_KEYS = st.lists(
    st.one_of(
        STATES, st.just(Nothing()), st.sampled_from([Keys(1, 8), Keys(2, 8), Keys(1, 8, 32)])
    ),
    min_size=1,
    max_size=9,
).map(tuple)
OF_LATENTS = st.lists(
    st.one_of(STATES, st.just(Nothing()), st.just(Latent(24))), min_size=1, max_size=9
).map(tuple)
LAYERS = st.one_of(OF_KEYS, OF_LATENTS)


@given(
    OF_KEYS.filter(lambda layers: Keys(1, 8) in layers),
    st.integers(1, 900),
)
def test_the_longest_sequence_has_room_beside_its_state(
    layers: tuple[CacheLayer, ...], pages: int
) -> None:
    groups = info_of(layers).cache_groups
    longest = longest_sequence(groups, pages, 16)
    if longest:
        assert pages_for(groups, longest, 16) <= pages
        assert longest % 16 == 0


@given(LAYERS, st.integers(0, 4))
def test_parts_of_states_lie_apart(layers: tuple[CacheLayer, ...], max_draft: int) -> None:
    behind = 0
    for index, place in state_places(layers, max_draft).items():
        state = layers[index]
        assert isinstance(state, State)
        assert place.convolution == behind
        assert place.recurrent - place.convolution >= state.channels * (state.kernel - 1)
        matrices = state.heads * state.key_dim * state.value_dim
        assert place.drafts - place.recurrent >= matrices
        assert place.recurrent_drafts - place.drafts >= max_draft * state.channels
        drafted = state.heads * (state.key_dim + state.value_dim) + state.gates
        assert place.end - place.recurrent_drafts >= max_draft * drafted
        assert not any(first % 16 for first in vars(place).values())
        behind = place.end


def first_table(info: ModelInfo) -> list[int]:
    """The layers that are in the same pages, those of the first page table that has any."""
    tables = [layers for group in info.cache_groups for layers in group.tables if layers]
    return sorted(set(tables[0])) if tables else []


def views_of(pool: Pool, layer: int) -> Sequence[Any]:
    """Keys and values of a layer, or its latents."""
    return pool.caches.get(layer) or (pool.latents[layer],)


def torch_views(pool: TorchPool, info: ModelInfo, layer: int) -> Sequence[torch.Tensor]:
    return (pool.latent_layer(layer),) if layer in info.latent_layers else pool.layer(layer)


@given(LAYERS, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 30))
def test_no_two_views_of_the_memory_overlap(
    layers: tuple[CacheLayer, ...], dtype: str, more: int
) -> None:
    info = info_of(layers, dtype=dtype)
    pages = info.state_pages + tables_of(info.cache_groups) + more
    pool = Pool(info, pages, FLOATS[dtype])
    views = [view for layer in first_table(info) for view in views_of(pool, layer)]
    for number, view in enumerate(views, 1):
        assert view.shape[0] == pages
        view[:] = number
    assert all(bool((view == number).all()) for number, view in enumerate(views, 1))
    if not info.state_pages:
        assert not pool.states.size
        return
    # A slot is the bytes of its pages, and of no other.
    slots, floats = pool.states.shape
    assert (slots, 4 * floats) == (pages // info.state_pages, info.state_pages * info.page_bytes())
    pool.states[1:] = -1.0
    own = [view[: info.state_pages] for view in views]
    assert all(bool((view == number).all()) for number, view in enumerate(own, 1))
    if slots > 1 and views:
        assert not any(
            bool((view[info.state_pages : 2 * info.state_pages] > 0).any()) for view in views
        )


@given(LAYERS, st.sampled_from(["float32", "bfloat16"]), st.integers(1, 30))
def test_torch_has_the_same_views(layers: tuple[CacheLayer, ...], dtype: str, more: int) -> None:
    info = info_of(layers, dtype=dtype)
    pages = info.state_pages + tables_of(info.cache_groups) + more
    pool = TorchPool(info, 1, pages, getattr(torch, dtype), torch.device("cpu"))
    views = [view for layer in first_table(info) for view in torch_views(pool, info, layer)]
    for number, view in enumerate(views, 1):
        view.fill_(number)
    assert all(bool((view == number).all()) for number, view in enumerate(views, 1))
    if info.state_pages:
        assert pool.states.shape == Pool(info, pages, FLOATS[dtype]).states.shape
        pool.states[1:] = -1.0
        own = [view[: info.state_pages] for view in views]
        assert all(bool((view == number).all()) for number, view in enumerate(own, 1))
    pool.resize(pages + 1)
    kept = first_table(info)
    assert all(len(view) == pages + 1 for at in kept for view in torch_views(pool, info, at))


def test_snapshots_weigh_as_much_as_what_lies_between_them() -> None:
    groups = (CacheGroup("full", ((0,),)), CacheGroup("state", (), 100))
    assert snapshot_interval(groups, 16, None) == 1600
    assert snapshot_interval(groups, 16, 100) == 112
    assert snapshot_interval(groups, 16, 0) == 0
    assert snapshot_interval(groups[:1], 16, 100) == 0
    small = (CacheGroup("full", ((0,),)), CacheGroup("state", (), 2))
    assert snapshot_interval(small, 16, None) == 512
    assert snapshot_interval((CacheGroup("full", ()), CacheGroup("state", (), 1)), 16, None) == 512


@pytest.fixture
def hybrid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model of three states to two layers that attend."""

    def traits(config: Mapping[str, Any]) -> Traits:
        return Traits(layers=HYBRID)

    monkeypatch.setitem(ARCHITECTURES, "HybridForCausalLM", decoder(traits))
    config = {
        "architectures": ["HybridForCausalLM"],
        "vocab_size": 100,
        "hidden_size": 64,
        "intermediate_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": len(HYBRID),
        "max_position_embeddings": 512,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


def test_a_cache_without_room_for_a_state_is_refused(hybrid: Path) -> None:
    common: dict[str, Any] = {"model": str(hybrid), "load_format": "dummy"}
    with pytest.raises(
        ConfigError, match=r"'num_blocks' of 1 does not hold one sequence: .* or more"
    ):
        describe(EngineConfig(**common, num_blocks=1))
    least = info_of(HYBRID).state_pages + 1
    spec = describe(EngineConfig(**common, num_blocks=least + 3, dtype="bfloat16", max_draft=3))
    assert spec.info.max_context == 4 * 16
    assert spec.info.state_pages == least - 1
    assert "room for 1 sequences" in spec.notes["states"]


def test_a_cache_of_mebibytes_names_what_a_state_takes(
    hybrid: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = State(channels=1024, kernel=4, heads=64, key_dim=128, value_dim=128)
    monkeypatch.setitem(
        ARCHITECTURES, "HybridForCausalLM", decoder(lambda _: Traits(layers=(wide, Keys(2, 16))))
    )
    with pytest.raises(
        ConfigError, match=r"state takes \d+\.\d MiB, and a block .* set it to 5 or"
    ):
        describe(EngineConfig(model=str(hybrid), load_format="dummy", kv_cache_mib=1, max_draft=0))


def test_steps_say_where_states_are(hybrid: Path) -> None:
    config = EngineConfig(model=str(hybrid), load_format="dummy", max_sequences=4)
    assert make_layout(config, describe(config).info).states
    assert not make_layout(config, describe(EngineConfig()).info).states


def test_a_draft_model_with_states_is_refused(hybrid: Path) -> None:
    (hybrid / "tokenizer.json").write_text("{}")
    config = EngineConfig(
        model=str(hybrid), draft_model=str(hybrid), speculation=("draft_model",),
        load_format="dummy",
    )  # fmt: skip
    with pytest.raises(ModelLoadError, match="has layers with states"):
        describe(config)

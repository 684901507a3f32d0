"""Groups of layers: how they share pages, and what a sequence holds."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pyengine.model.cache_groups import (
    MOST_TABLES,
    CacheGroup,
    allocated,
    beside,
    cache_groups,
    longest_sequence,
    one_group,
    pages_for,
    places,
    slots_of,
    spare_blocks,
    tables_of,
)
from pyengine.model.cache_layers import Keys, slots_by_layer


def keys_of(layers: Iterable[tuple[int | None, int]]) -> tuple[Keys, ...]:
    """Layers of these windows, with so many heads; without any they read another layer's."""
    return tuple(Keys(heads or 1, 8, window, None if heads else 0) for window, heads in layers)


def keys(windows: Iterable[int | None]) -> tuple[Keys, ...]:
    return keys_of((window, 1) for window in windows)


def test_a_model_without_windows_has_one_page_for_all_layers() -> None:
    layers = keys([None] * 4)
    assert cache_groups(layers) == one_group(layers) == (CacheGroup("full", ((0, 1, 2, 3),)),)
    assert (slots_of(one_group(layers)), tables_of(one_group(layers))) == (4, 1)


@pytest.mark.parametrize(
    ("layers", "slots", "tables"),
    [([512] * 5 + [None], 1, 6), ([512, None] * 6, 6, 2), ([512] * 4, 4, 1)],
)
def test_pages_have_no_empty_slots_where_that_can_be(
    layers: list[int | None], slots: int, tables: int
) -> None:
    groups = cache_groups(keys(layers))
    assert (slots_of(groups), tables_of(groups)) == (slots, tables)


LAYERS = st.tuples(st.sampled_from([None, 4, 16]), st.sampled_from([1, 1, 2, 3, 0]))
"""A layer's window, and how many slots it takes."""


@given(st.lists(LAYERS, min_size=1, max_size=70).filter(lambda layers: any(s for _, s in layers)))
def test_every_layer_has_slots_of_its_own(layers: list[tuple[int | None, int]]) -> None:
    windows, own = [window for window, _ in layers], keys_of(layers)
    slots = slots_by_layer(own)
    groups = cache_groups(own)
    found = places(groups)
    assert set(found) == {at for at, count in enumerate(slots) if count}
    assert groups[0].window is None
    assert tables_of(groups) <= MOST_TABLES
    tables = [group.window for group in groups for _ in group.tables]
    assert all(tables[table] == windows[layer] for layer, (table, _) in found.items())
    taken = {
        (table, slot)
        for layer, (table, first) in found.items()
        for slot in range(first, first + slots[layer])
    }
    assert len(taken) == sum(slots)
    assert all(slot < slots_of(groups) for _, slot in taken)


@given(
    st.lists(st.sampled_from([None, 4, 16]), min_size=1, max_size=40).filter(lambda w: None in w),
    st.lists(
        st.tuples(st.sampled_from([None, 3, 4, 9, 20]), st.sampled_from([0, 1, 2])), min_size=1
    ).filter(lambda layers: any(slots for _, slots in layers)),
)
def test_a_draft_models_layers_are_kept_as_long_as_they_see(
    windows: list[int | None], draft: list[tuple[int | None, int]]
) -> None:
    """In the tables of the model that it drafts for, and no longer than they must."""
    groups = cache_groups(keys(windows))
    own, drafting = [window for window, _ in draft], keys_of(draft)
    slots = slots_by_layer(drafting)
    found = beside(groups, drafting)
    assert allocated(found) == allocated(groups)
    assert set(places(found)) == {at for at, count in enumerate(slots) if count}
    tables = [group.window for group in groups for _ in group.tables]
    for layer, (table, first) in places(found).items():
        kept, sees = tables[table], own[layer]
        assert kept is None or (sees is not None and sees <= kept)
        wide = [each for each in tables if each is not None and sees is not None and sees <= each]
        assert kept == min(wide, default=None)
        assert first + slots[layer] <= slots_of(found)
    # Spare pages hold a window and a pass beside each other.
    widest = max((group.window or 0 for group in groups), default=0)
    assert (spare_blocks(groups, 4) > widest // 4) == (widest > 0)


@given(st.integers(1, 400), st.integers(1, 8), st.integers(1, 40))
def test_the_longest_sequence_is_one_that_fits(pages: int, block_size: int, window: int) -> None:
    groups = cache_groups(keys([window] * 5 + [None]))
    longest = longest_sequence(groups, pages, block_size)
    assert longest is not None
    assert longest % block_size == 0
    assert longest == 0 or pages_for(groups, longest, block_size) <= pages
    assert pages_for(groups, longest + 1, block_size) > pages


def test_a_long_sequence_holds_little_more_than_its_windows() -> None:
    groups = cache_groups(keys([1024] * 5 + [None]))
    assert pages_for(groups, 8192, 16) <= 0.30 * 6 * 8192 / 16
    assert pages_for(groups, 128, 16) == 6 * 128 / 16

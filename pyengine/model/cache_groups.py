"""The groups of a model's KV cache: which layers need their keys and values for the same time.

All groups take pages of one size from one pool, so that a page that a window has left may serve any
layers. A page is the memory of one block of tokens in ``slots`` layers; a group of more layers has
several *tables*, each with a page for its own layers::

    6 layers, 5:1, one slot            26 layers, 22 with a window, 5 slots
    full    table 0: layer 5           full    table 0: layers 5 11 17 23, one slot empty
    window  table 1: layer 0           window  table 1: layers 0 1 2 3 4
            ...                                ...
            table 5: layer 4                   table 5: layers 22 24, three slots empty

A layer with larger heads than others takes several neighbouring slots, and is named as often in its
table; one that attends to another layer's keys and values takes none.

Imports no torch. ``rust/kv_allocator/src`` has the blocks of these groups.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, islice, repeat

MOST_TABLES = 8
"""A step writes each of its tokens and pages once for each table."""

_LEAST_PASS = 512
"""Tokens that a draft model catches up by at once, though its windows are narrower."""

_FULL_WEIGHT = 4
"""An empty slot beside layers that see all tokens costs as many as this beside a window: sequences
are longer than windows, or the windows would save nothing."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers whose keys and values are kept for the same time.

    Attributes:
        window: Tokens that a query sees, its own counted in; None is all before it.
        tables: The layers of each page table, one for each slot of a page. The first group sees
            all tokens, and has no tables if no layer does.
    """

    window: int | None
    tables: tuple[tuple[int, ...], ...]


def one_group(slots: Sequence[int]) -> tuple[CacheGroup, ...]:
    """All layers, which take so many slots each, in one page: those of windows keep all tokens."""
    return (CacheGroup(None, (_named(range(len(slots)), slots),)),)


def cache_groups(
    windows: Sequence[int | None], slots: Sequence[int] | None = None
) -> tuple[CacheGroup, ...]:
    """The groups of a model whose layers have these windows.

    The slots of a page are as many as leave the least empty with at most :data:`MOST_TABLES`.

    Args:
        windows: Of each layer.
        slots: How many slots each takes; None: one.
    """
    slots = (1,) * len(windows) if slots is None else slots
    if not any(windows):
        return one_group(slots)
    kinds = [None, *sorted({window for window in windows if window is not None})]
    layers = [
        [at for at, window in enumerate(windows) if window == kind and slots[at]] for kind in kinds
    ]
    whole = max(sum(slots[at] for at in own) for own in layers)
    filled = {
        size: [_tables(own, slots, size) for own in layers] for size in range(max(slots), whole + 1)
    }
    few = [size for size, found in filled.items() if sum(map(len, found)) <= MOST_TABLES]
    best = min(few or [whole], key=lambda size: (_empty(filled[size], size), -size))
    return tuple(CacheGroup(kind, tables) for kind, tables in zip(kinds, filled[best], strict=True))


def beside(
    groups: Sequence[CacheGroup], windows: Sequence[int | None], slots: Sequence[int]
) -> tuple[CacheGroup, ...]:
    """The layers of a draft model in the pages of the model that it drafts for.

    Every page has room for layers of both, so that there is one pool of pages of one size::

        Gemma 3 4B, 5:1, 5 slots           a draft model of 18 layers, 5:1, 3 slots
        full    table 0: layers 5 11 ..    layers 5 11 17
        window  table 1: layers 0 1 2 ..   layers 0 1 2
                ...                        ...
                table 6: layers 30 ..      no layers

    A layer is in the group of the narrowest window that is not narrower than its own.

    Args:
        groups: Of the model that it drafts for. The first has tables.
        windows: Of each layer of the draft model.
        slots: How many slots each takes.

    Returns:
        As many groups, with the same windows and as many tables, some of them without layers.
    """
    widths = [math.inf if group.window is None else group.window for group in groups]
    own: list[list[int]] = [[] for _ in groups]
    for layer, window in enumerate(windows):
        least = math.inf if window is None else window
        home = min((width for width in widths if width >= least), default=math.inf)
        own[widths.index(home)].append(layer)
    size = max(slots)
    while any(
        len(_tables(layers, slots, size)) > len(group.tables)
        for layers, group in zip(own, groups, strict=True)
    ):
        size += 1
    return tuple(
        CacheGroup(group.window, tuple(islice(chain(tables, repeat(())), len(group.tables))))
        for group, tables in zip(groups, (_tables(each, slots, size) for each in own), strict=True)
    )


def spare_blocks(groups: Sequence[CacheGroup], block_size: int) -> int:
    """Blocks that a draft model has spare pages for, beyond those of the groups it shares.

    They hold its widest window and the tokens of a pass, of one sequence that has lost the pages
    behind its windows before the draft model has computed them. None without windows.
    """
    widest = max((group.window or 0 for group in groups), default=0)
    if not widest:
        return 0
    return -(-(widest + max(widest, _LEAST_PASS)) // block_size) + 1


def _named(layers: Iterable[int], slots: Sequence[int]) -> tuple[int, ...]:
    return tuple(layer for layer in layers for _ in range(slots[layer]))


def _tables(layers: Sequence[int], slots: Sequence[int], size: int) -> tuple[tuple[int, ...], ...]:
    """The layers in as many tables of ``size`` slots as they take, in their order."""
    tables: list[tuple[int, ...]] = []
    for layer in layers:
        if not tables or len(tables[-1]) + slots[layer] > size:
            tables.append(())
        tables[-1] += (layer,) * slots[layer]
    return tuple(tables)


def _empty(groups: Sequence[Sequence[tuple[int, ...]]], size: int) -> int:
    full, *windows = (sum(size - len(table) for table in tables) for tables in groups)
    return _FULL_WEIGHT * full + sum(windows)


def slots_of(groups: Sequence[CacheGroup]) -> int:
    """Slots of a page."""
    return max(len(layers) for group in groups for layers in group.tables)


def tables_of(groups: Sequence[CacheGroup]) -> int:
    """Page tables of all groups."""
    return sum(len(group.tables) for group in groups)


def allocated(groups: Sequence[CacheGroup]) -> list[tuple[int | None, int]]:
    """The groups as the allocator knows them: the window and the page tables of each."""
    return [(group.window, len(group.tables)) for group in groups]


def places(groups: Sequence[CacheGroup]) -> dict[int, tuple[int, int]]:
    """For each layer, its page table, counted through all groups, and its first slot in a page."""
    tables = [layers for group in groups for layers in group.tables]
    return {
        layer: (table, layers.index(layer))
        for table, layers in enumerate(tables)
        for layer in layers
    }


def pages_for(groups: Sequence[CacheGroup], tokens: int, block_size: int) -> int:
    """The most pages that a sequence of so many tokens holds while it computes one at a time."""
    blocks = -(-tokens // block_size)
    return sum(
        len(group.tables)
        * (
            blocks
            if group.window is None
            else min(blocks, -(-(group.window - 1) // block_size) + 1)
        )
        for group in groups
    )


def longest_sequence(groups: Sequence[CacheGroup], pages: int, block_size: int) -> int | None:
    """Tokens of the longest sequence that so many pages hold; None where there is no limit.

    Its tokens also have to be remembered by name, which the allocator bounds by the same rule.
    """
    if not groups[0].tables:
        return None
    windows = pages_for(groups[1:], 1 << 62, block_size)
    left = (pages - windows) // len(groups[0].tables)
    blocks = pages // tables_of(groups)
    return max(left, blocks) * block_size

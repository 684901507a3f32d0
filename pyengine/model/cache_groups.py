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
table; one that attends to another layer's keys and values takes none, and so does one that keeps
nothing of tokens (:mod:`pyengine.model.cache_layers`).

Imports no torch. ``rust/kv_allocator/src`` has the blocks of these groups.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice, repeat
from typing import Literal

from pyengine.model.cache_layers import CacheLayer, Latent, keys_of, slots_by_layer

MOST_TABLES = 8
"""A step writes each of its tokens and pages once for each table."""

_LEAST_PASS = 512
"""Tokens that a draft model catches up by at once, though its windows are narrower."""

_LEAST_INTERVAL = 512
"""Tokens between snapshots at least: a prompt's chunks end where they are taken."""

_FULL_WEIGHT = 4
"""An empty slot beside layers that see all tokens costs as many as this beside a window: sequences
are longer than windows, or the windows would save nothing."""


@dataclass(frozen=True)
class CacheGroup:
    """Layers of one kind, which need their memory for the same time.

    Attributes:
        kind: ``full`` keeps keys and values of all tokens, ``window`` those of the last,
            ``latent`` a latent of all tokens, ``state`` one state of the sequence.
        tables: The layers of each page table, one for each slot of a page. The first group keeps
            all tokens, and has no tables if no layer does. That of states is the last, and has
            none.
        size: Of a window: the tokens that a query sees, its own counted in. Of states: the pages
            of one, in all layers.
    """

    kind: Literal["full", "window", "latent", "state"]
    tables: tuple[tuple[int, ...], ...]
    size: int = 0

    @property
    def window(self) -> int | None:
        """Tokens that a query sees, its own counted in; None is all before it."""
        return self.size if self.kind == "window" else None


_FULL = CacheGroup("full", ())
_ORDER = ("full", "latent", "window")


def one_group(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """All layers in one page; layers with windows keep all tokens."""
    return (CacheGroup("full", (_named(range(len(layers)), slots_by_layer(layers)),)),)


def cache_groups(layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
    """The groups of a model with these layers.

    The slots of a page are as many as leave the least empty with at most :data:`MOST_TABLES`.
    """
    slots = slots_by_layer(layers)
    homes: dict[CacheGroup, list[int]] = {}
    for index, layer in enumerate(layers):
        if slots[index]:
            homes.setdefault(_home(layer), []).append(index)
    order = sorted(homes, key=lambda group: (_ORDER.index(group.kind), group.size))
    if not order or order[0].kind == "window":
        order.insert(0, _FULL)
    own = [homes.get(group, []) for group in order]
    whole = max(sum(slots[index] for index in each) for each in own)
    least = whole if len(order) == 1 else max(slots)
    filled = {
        size: [_tables(each, slots, size) for each in own] for size in range(least, whole + 1)
    }
    few = [size for size, found in filled.items() if sum(map(len, found)) <= MOST_TABLES]
    best = min(few or [whole], key=lambda size: (_empty(order, filled[size], size), -size))
    return tuple(
        replace(group, tables=tables) for group, tables in zip(order, filled[best], strict=True)
    )


def _home(layer: CacheLayer) -> CacheGroup:
    """The group of a layer that keeps something of tokens, without tables yet."""
    if isinstance(layer, Latent):
        return CacheGroup("latent", ())
    keys = keys_of(layer)
    if keys is not None and keys.window is not None:
        return CacheGroup("window", (), keys.window)
    return _FULL


def beside(groups: Sequence[CacheGroup], layers: Sequence[CacheLayer]) -> tuple[CacheGroup, ...]:
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
        layers: The layers of the draft model.

    Returns:
        As many groups of pages, with the same windows and as many tables, some of them without
        layers.
    """
    groups = [group for group in groups if group.kind != "state"]
    widths = [math.inf if group.window is None else group.window for group in groups]
    own: list[list[int]] = [[] for _ in groups]
    slots = slots_by_layer(layers)
    for index, layer in enumerate(layers):
        if not slots[index]:
            continue
        least = _home(layer).window or math.inf
        home = min((width for width in widths if width >= least), default=math.inf)
        own[widths.index(home)].append(index)
    size = max(slots)
    while any(
        len(_tables(each, slots, size)) > len(group.tables)
        for each, group in zip(own, groups, strict=True)
    ):
        size += 1
    return tuple(
        replace(group, tables=tuple(islice(chain(tables, repeat(())), len(group.tables))))
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
    for layer in (each for each in layers if slots[each]):
        if not tables or len(tables[-1]) + slots[layer] > size:
            tables.append(())
        tables[-1] += (layer,) * slots[layer]
    return tuple(tables)


def _empty(
    groups: Sequence[CacheGroup], tables: Sequence[Sequence[tuple[int, ...]]], size: int
) -> int:
    """What the empty slots of pages of ``size`` slots cost."""
    return sum(
        (1 if group.window else _FULL_WEIGHT) * sum(size - len(table) for table in own)
        for group, own in zip(groups, tables, strict=True)
    )


def slots_of(groups: Sequence[CacheGroup]) -> int:
    """Slots of a page."""
    return max((len(layers) for group in groups for layers in group.tables), default=0)


def tables_of(groups: Sequence[CacheGroup]) -> int:
    """Page tables of all groups."""
    return sum(len(group.tables) for group in groups)


def allocated(groups: Sequence[CacheGroup]) -> list[tuple[str, int, int]]:
    """The groups as the allocator takes them: kind, page tables, and tokens of a window or pages of
    a state.
    """
    return [(group.kind, len(group.tables), group.size) for group in groups]


def state_pages(groups: Sequence[CacheGroup]) -> int:
    """Pages of a sequence's state; 0 where no layer has one."""
    return sum(group.size for group in groups if group.kind == "state")


def snapshot_interval(groups: Sequence[CacheGroup], block_size: int, asked: int | None) -> int:
    """Tokens between snapshots of a sequence's state, in whole blocks; 0: none between.

    Args:
        groups: Of the model.
        block_size: Tokens in a block.
        asked: As :attr:`pyengine.settings.config.EngineConfig.snapshot_interval`. None: the keys
            and values of as many tokens weigh what a snapshot does, so that snapshots take half of
            the cache at most; of a model without keys and values, a fixed number.
    """
    state = state_pages(groups)
    if not state or asked == 0:
        return 0
    if asked is not None:
        return -(-asked // block_size) * block_size
    tables = tables_of(groups)
    tokens = -(-state // tables) * block_size if tables else 0
    return -(-max(tokens, _LEAST_INTERVAL) // block_size) * block_size


def places(groups: Sequence[CacheGroup]) -> dict[int, tuple[int, int]]:
    """For each layer, its page table, counted through all groups, and its first slot in a page."""
    tables = [layers for group in groups for layers in group.tables]
    return {
        layer: (table, layers.index(layer))
        for table, layers in enumerate(tables)
        for layer in layers
    }


def pages_for(groups: Sequence[CacheGroup], tokens: int, block_size: int) -> int:
    """The most pages that a sequence of ``tokens`` holds while it computes one at a time."""
    blocks = -(-tokens // block_size)
    return state_pages(groups) + sum(
        len(group.tables)
        * (
            blocks
            if group.window is None
            else min(blocks, -(-(group.window - 1) // block_size) + 1)
        )
        for group in groups
    )


def longest_sequence(groups: Sequence[CacheGroup], pages: int, block_size: int) -> int | None:
    """Tokens of the longest sequence that fits ``pages``; None where there is no limit.

    Its tokens also have to be remembered by name, which the allocator bounds by the same rule.
    """
    if not groups[0].tables:
        return None
    others = pages_for(groups[1:], 1 << 62, block_size)
    left = (pages - others) // len(groups[0].tables)
    blocks = max(0, pages - state_pages(groups)) // tables_of(groups)
    return max(left, blocks) * block_size

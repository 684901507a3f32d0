"""The weights of a GGUF file, by the names of the dense checkpoint they were made from."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.weights.gguf.config import family_of
from pyengine.model.weights.gguf.family import Facts, Layout, Order
from pyengine.model.weights.gguf.file import Entry, GgufFile
from pyengine.model.weights.gguf.tensors import stored, within_layer
from pyengine.model.weights.gguf.types import TYPES
from pyengine.model.weights.matrix import Dense, Part

TABLES = {"rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight"}
"""Which are no weights, but what angles are made of."""
HALVES = {"ffn_gate_exps": 0, "ffn_up_exps": 1}
"""Tensors that some files have as halves of :data:`BOTH`."""
BOTH = "ffn_gate_up_exps"
SPLIT = {"attn_kv_b": ("attn_k_b", "attn_v_b")}
"""Tensors that newer files have in two pieces: see :func:`latent_heads`."""


class GgufWeights:
    """The tensors of one file; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._facts, self._family = family_of(file)
        # gpt-oss has a gate and its up as neighbours, others one below the other.
        self._in_turn = self._facts.name == "gpt-oss"
        self.nbytes = file.nbytes
        self._asked: set[str] = set()

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is."""
        return any(entry.type.numbers > 1 for entry in self._file.tensors.values())

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        layout = self._family.rows.get(within_layer(name))
        entries = self._entries(name)
        pieces = [entry.part().dequantized().reshape(-1) for entry in entries]
        vector = np.stack(pieces, 1).reshape(-1) if self._in_turn else np.concatenate(pieces)
        if vector.size != size * (1 if layout is None else layout.weights):
            raise self._misfit(name, entries, (size,))
        if layout is not None:
            order = layout.order(self._facts, size)
            vector = vector.reshape(len(order) * layout.weights, -1)[order].reshape(-1)
        module = within_layer(name)
        if module.endswith("A_log"):
            return np.log(-vector.astype(np.float32))
        if self._family.ones and name.endswith("norm.weight") and module != "linear_attn.norm":
            return vector.astype(np.float32) - np.float32(1)
        return vector

    def check_all_read(self, config: Mapping[str, Any], *, some: bool = False) -> None:
        """See :class:`Source`."""
        left = self._file.tensors.keys() - self._asked - TABLES
        layers = (re.match(r"blk\.(\d+)\.", name) for name in left)
        left -= {one.string for one in layers if one and int(one[1]) >= self._facts.layers}
        if left and not some:
            raise ModelLoadError(
                f"{self._file.path} has tensors that its metadata gives no use: "
                f"{', '.join(sorted(left)[:3])}"
            )

    def scale(self, names: Sequence[str]) -> float | None:
        """None: the format has none."""
        return None

    def has(self, name: str) -> bool:
        """See :class:`Source`; names of a file's own are none of a checkpoint."""
        return False

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """See :class:`Source`."""
        layout = self._family.rows.get(within_layer(name), Layout(_as_it_is))
        entries = self._entries(name)
        count = sum(len(entry.rows) for entry in entries)
        widths = {entry.shape[-1] for entry in entries}
        if count != shape[0] * layout.weights or widths != {shape[1]}:
            raise self._misfit(name, entries, shape)
        if len(entries) == 1:
            order = layout.order(self._facts, shape[0])
            part = entries[0].part(rows if layout.order is _as_it_is else order[rows])
        else:
            part = self._of_several(name, entries, rows)
        across = self._family.columns.get(within_layer(name))
        if across is None:
            return part.columns(columns)
        return in_order(part, across.order(self._facts, shape[1])[columns])

    def _of_several(self, name: str, entries: list[Entry], rows: slice) -> Part:
        """Rows of several tensors, which follow each other or come in turn."""
        if not self._in_turn:
            first = 0
            for entry in entries:
                if first <= rows.start and rows.stop <= first + len(entry.rows):
                    return entry.part(slice(rows.start - first, rows.stop - first))
                first += len(entry.rows)
        kinds = {entry.type.name for entry in entries}
        if len(kinds) > 1:
            names = " and ".join(stored(name, self._family.names).names)
            raise ModelLoadError(f"{names} in {self._file.path} are of different types")
        pieces = [entry.rows for entry in entries]
        together = np.stack(pieces, 1) if self._in_turn else np.concatenate(pieces)
        whole = replace(entries[0], rows=together.reshape(-1, pieces[0].shape[1]))
        return whole.part(rows)

    def _entries(self, name: str) -> list[Entry]:
        """The tensors with the rows of a matrix or vector, each with these rows alone."""
        names, number = stored(name, self._family.names)
        return [self._entry(name, each, number) for each in names]

    def _entry(self, name: str, own: str, number: int | None) -> Entry:
        tensors = self._file.tensors
        block, short, end = own.rsplit(".", 2) if own.count(".") > 1 else ("", own, "")
        self._asked.add(own)
        both = [f"{block}.{each}.{end}" for each in SPLIT.get(short, ())]
        whole, half = f"{block}.{BOTH}.{end}", HALVES.get(short)
        if own in tensors:
            entry, half = tensors[own], None
        elif both and all(each in tensors for each in both):
            self._asked.update(both)
            entry = latent_heads(*(tensors[each] for each in both))
        elif half is not None and whole in tensors:
            self._asked.add(whole)
            entry = tensors[whole]
        else:
            raise ModelLoadError(f"{self._file.path} lacks {own!r}, which is {name!r}")
        if number is not None and len(entry.shape) > 1:
            if number >= entry.shape[0]:
                raise ModelLoadError(
                    f"{own!r} in {self._file.path} has shape {list(entry.shape)}; of "
                    f"{entry.shape[0]} that is number {number}"
                )
            entry = entry.number(number)
        return entry if half is None else entry.half(half)

    def _misfit(
        self, name: str, entries: Sequence[Entry], shape: tuple[int, ...]
    ) -> ModelLoadError:
        names = " and ".join(map(repr, stored(name, self._family.names).names))
        shapes = " and ".join(str(list(entry.shape)) for entry in entries)
        return ModelLoadError(
            f"{names} in {self._file.path} has shape {shapes}; its metadata wants {list(shape)}"
        )


def _as_it_is(facts: Facts, size: int) -> Order:
    return np.arange(size)


def latent_heads(keys: Entry, values: Entry) -> Entry:
    """What makes keys and values of latents, of each head one behind the other.

    Args:
        keys: [heads, latent, key].
        values: [heads, value, latent].
    """
    made, given = (
        each.part().dequantized().astype(np.float32).reshape(each.shape) for each in (keys, values)
    )
    both = np.concatenate((made.swapaxes(1, 2), given), 1)
    rows = np.ascontiguousarray(both.reshape(-1, both.shape[-1]))
    return Entry(rows.shape, TYPES[0], rows.view(np.uint8))


def in_order(part: Part, order: Order) -> Part:
    """``part`` with its columns in another order, in floats where that divides groups."""
    cuts = np.flatnonzero(np.diff(order) != 1) + 1
    runs = [slice(int(run[0]), int(run[-1]) + 1) for run in np.split(order, cuts)]
    try:
        pieces = [part.columns(run) for run in runs]
    except ConfigError:
        return Dense(part.dequantized()[:, order])
    arrays = {
        each.name: np.concatenate([getattr(piece, each.name) for piece in pieces], 1)
        for each in fields(pieces[0])  # type: ignore[arg-type]
        if isinstance(getattr(pieces[0], each.name), np.ndarray)
    }
    return replace(pieces[0], **arrays)  # type: ignore[type-var]

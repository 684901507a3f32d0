"""The weights of a GGUF file, by the names of the dense checkpoint they were made from."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.file import Entry, GgufFile
from pyengine.model.weights.gguf.tensors import stored
from pyengine.model.weights.matrix import Part

PERMUTED = {
    "self_attn.q_proj": "attention.head_count",
    "self_attn.k_proj": "attention.head_count_kv",
}
"""Layers whose rows llama.cpp has in another order, and which number of heads counts."""


class GgufWeights:
    """The tensors of one file; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(self, file: GgufFile) -> None:
        self._file = file
        self._architecture = str(file.metadata["general.architecture"])
        self.nbytes = file.nbytes

    @property
    def is_quantized(self) -> bool:
        """Whether any tensor is."""
        return any(entry.type.numbers > 1 for entry in self._file.tensors.values())

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        entries, number = self._entries(name, (size,))
        pieces = []
        for entry in entries:
            rows = entry.rows[0 if number is None else number]
            pieces.append(entry.type.read(rows[None, None]).dequantized()[0])
        vector: NDArray[Any] = np.stack(pieces, 1).reshape(size)
        order = self._order(name, size)
        return vector if order is None else vector[order]

    def scale(self, names: Sequence[str]) -> float | None:
        """None: the format has none."""
        return None

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """See :class:`Source`."""
        entries, number = self._entries(name, shape)
        each = shape[0] // len(entries)
        first = each * (number or 0)
        pieces = [entry.rows[first : first + each] for entry in entries]
        together = pieces[0] if len(pieces) == 1 else np.stack(pieces, 1).reshape(shape[0], -1)
        order, kind = self._order(name, shape[0]), entries[0].type
        mine = together[rows] if order is None else together[order[rows]]
        return kind.read(mine.reshape(len(mine), -1, kind.nbytes)).columns(columns)

    def _entries(self, name: str, shape: tuple[int, ...]) -> tuple[list[Entry], int | None]:
        """The tensors with a matrix or vector, or with the rows of one in turn; and its number
        among the tensors', if they have several.
        """
        path, (names, number) = self._file.path, stored(name, self._architecture)
        wanted = (shape[0] // len(names), *shape[1:])
        entries = []
        for each in names:
            entry = self._file.tensors.get(each)
            if entry is None:
                raise ModelLoadError(f"{path} lacks {each!r}, which is {name!r}")
            found = entry.shape if number is None else entry.shape[1:]
            # The converter writes a matrix of one row as a vector.
            fits = found in (wanted, wanted[1:] if wanted[0] == 1 else wanted)
            if not fits or (number is not None and number >= entry.shape[0]):
                of = "" if number is None else f"; of {entry.shape[0]} that is number {number}"
                raise ModelLoadError(
                    f"{each!r} in {path} has shape {list(entry.shape)}; its metadata wants "
                    f"{list(wanted)}{of}"
                )
            entries.append(entry)
        if len({entry.type.name for entry in entries}) > 1:
            raise ModelLoadError(f"{' and '.join(names)} in {path} are of different types")
        return entries, number

    def _order(self, name: str, size: int) -> NDArray[np.intp] | None:
        """Order of a tensor's rows in the file; None: as they are.

        llama.cpp rotates neighbouring elements of a head for Llama, the first half with the second
        for others. Its converter reorders the rows of queries and keys, which this undoes.
        """
        metadata = self._file.metadata
        heads = next((PERMUTED[part] for part in PERMUTED if part in name), None)
        if heads is None or self._architecture != "llama":
            return None
        count = metadata.get(f"llama.{heads}", metadata["llama.attention.head_count"])
        return np.arange(size).reshape(count, -1, 2).swapaxes(1, 2).reshape(size)

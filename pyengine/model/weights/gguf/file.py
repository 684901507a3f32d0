"""A GGUF file: its metadata, and where its tensors lie.

The format is described in ggml's docs/gguf.md (https://github.com/ggml-org/ggml): a header, pairs
of names and values, the tensors' names, shapes and types, and their bytes, each aligned. Shapes
begin with the innermost dimension.
"""

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.gguf.names import all_parts
from pyengine.model.weights.gguf.types import TYPES, TensorType, type_name
from pyengine.model.weights.mapped import mapped
from pyengine.model.weights.matrix import Part

VERSIONS = (2, 3)
SCALARS = {
    0: "B",
    1: "b",
    2: "H",
    3: "h",
    4: "I",
    5: "i",
    6: "f",
    7: "?",
    10: "Q",
    11: "q",
    12: "d",
}
STRING, ARRAY = 8, 9


@dataclass(frozen=True)
class Entry:
    """A tensor of a file.

    Attributes:
        shape: Its dimensions, outermost first.
        type: The type of its blocks.
        rows: uint8 [rows, bytes of a row], a view of the file.
    """

    shape: tuple[int, ...]
    type: TensorType
    rows: NDArray[np.uint8]

    def part(self, rows: slice | NDArray[np.intp] | None = None) -> Part:
        """Its rows, or some of them, as a part of a matrix."""
        mine = self.rows if rows is None else self.rows[rows]
        return self.type.read(mine.reshape(len(mine), -1, self.type.nbytes))

    def number(self, at: int) -> "Entry":
        """One of those that its outermost dimension counts."""
        each = len(self.rows) // self.shape[0]
        return Entry(self.shape[1:], self.type, self.rows[at * each : (at + 1) * each])

    def half(self, second: int) -> "Entry":
        """The first or the second half of a matrix's rows."""
        each = len(self.rows) // 2
        rows = self.rows[second * each : (second + 1) * each]
        return Entry((each, self.shape[-1]), self.type, rows)


def open_gguf(path: Path) -> "GgufFile":
    """The model in ``path``, and in the files that go with it.

    Raises:
        ModelLoadError: As for :class:`GgufFile`; it is not the first of several; one is missing.
    """
    paths = all_parts(path)
    if path != paths[0]:
        raise ModelLoadError(f"{path} is one of several files: give the first", param="model")
    missing = [each.name for each in paths if not each.is_file()]
    if missing:
        raise ModelLoadError(f"{path.parent} lacks {', '.join(missing)}", param="model")
    file = GgufFile(path, [GgufFile(other) for other in paths[1:]])
    count = int(file.metadata.get("split.count") or 1)
    if count != len(paths):
        raise ModelLoadError(
            f"{path} is one of {count} files, which must be named NAME-00001-of-{count:05}.gguf "
            "and so on",
            param="model",
        )
    return file


class GgufFile:
    """A mapped GGUF file. One thread at a time.

    Attributes:
        path: Where it is.
        metadata: Values by name; arrays are lists.
        nbytes: The size in bytes of the file, and of those with more of its tensors.
    """

    def __init__(self, path: Path, others: Sequence["GgufFile"] = ()) -> None:
        """Read the header; ``others`` have more of its tensors.

        Raises:
            ModelLoadError: It cannot be read, is no GGUF file, of another version, or damaged.
        """
        self.path = path
        self._others = others
        memory = mapped(path)
        self.nbytes: int = len(memory) + sum(other.nbytes for other in others)
        self._bytes = np.frombuffer(memory, np.uint8)
        self._view = memoryview(memory)
        self._at = 0
        try:
            if bytes(self._view[:4]) != b"GGUF":
                raise ValueError("it is no GGUF file")
            self._at = 4
            version = self._scalar("I")
            if version not in VERSIONS:
                raise ValueError(f"version {version} is not supported; there are: 2, 3")
            tensors, values = self._scalar("Q"), self._scalar("Q")
            self.metadata: dict[str, Any] = {}
            for _ in range(values):
                name = self._string()
                self.metadata[name] = self._value(self._scalar("I"))
            self._infos = [self._info() for _ in range(tensors)]
        except (ValueError, KeyError, struct.error, UnicodeDecodeError, MemoryError) as error:
            raise ModelLoadError(f"cannot read {path}: {error}", param="model") from error
        alignment = int(self.metadata.get("general.alignment", 32))
        self._start = -(-self._at // alignment) * alignment

    @cached_property
    def tensors(self) -> dict[str, Entry]:
        """The tensors by name.

        Raises:
            ModelLoadError: One is of a type that is not supported, or beyond the end of the file.
        """
        found = {info[0]: self._entry(*info) for info in self._infos}
        for other in self._others:
            found |= other.tensors
        return found

    def _entry(self, name: str, shape: tuple[int, ...], number: int, offset: int) -> Entry:
        kind = TYPES.get(number)
        if kind is None:
            known = ", ".join(each.name for each in TYPES.values())
            raise ModelLoadError(
                f"{name!r} in {self.path} is of type {type_name(number)}, which is not supported; "
                f"there are: {known}",
                param="model",
            )
        inner, rows = shape[-1], math.prod(shape[:-1])
        begin = self._start + offset
        end = begin + rows * (inner // kind.numbers) * kind.nbytes
        if inner % kind.numbers or end > len(self._bytes):
            raise ModelLoadError(f"{name!r} does not lie within {self.path}", param="model")
        return Entry(shape, kind, self._bytes[begin:end].reshape(rows, -1))

    def _info(self) -> tuple[str, tuple[int, ...], int, int]:
        name, dimensions = self._string(), self._scalar("I")
        shape = tuple(self._scalar("Q") for _ in range(dimensions))[::-1]
        return name, shape, self._scalar("I"), self._scalar("Q")

    def _scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from("<" + code, self._view, self._at)
        self._at += struct.calcsize("<" + code)
        return value

    def _string(self) -> str:
        length = self._scalar("Q")
        begin, self._at = self._at, self._at + length
        if self._at > len(self._view):
            raise ValueError("it ends within its header")
        return str(self._view[begin : self._at], "utf-8", "replace")

    def _value(self, kind: int) -> Any:
        if kind == STRING:
            return self._string()
        if kind != ARRAY:
            return self._scalar(SCALARS[kind])
        kind, count = self._scalar("I"), self._scalar("Q")
        if kind in (STRING, ARRAY):
            return [self._value(kind) for _ in range(count)]
        numbers = np.frombuffer(self._view, "<" + SCALARS[kind], count, self._at)
        self._at += numbers.nbytes
        return numbers.tolist()

"""Weights from a Hugging Face folder: model.safetensors, or shards with an index.

The files are mapped into memory, and a tensor is read when it is asked for; what its architecture
does not ask for is never read.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

import torch
from safetensors import SafetensorError, safe_open

from pyengine.errors import ModelLoadError
from pyengine.model.runner import Progress

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Weights(Protocol):
    """What architectures load their weights from, as those of one rank; see :mod:`.layers`.

    Attributes:
        num_parameters: Numbers of the whole model, as far as it was asked for.
    """

    num_parameters: int

    def whole(self, name: str, *shape: int) -> torch.Tensor:
        """The tensor called ``name``, of this shape; the same for all ranks.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """

    def outputs(self, rows: Mapping[str, int], *rest: int) -> torch.Tensor:
        """A share of the rows of each of the tensors [rows[name], *rest], one below the other.

        Rows that ranks do not divide are filled up with zeros at the last one.

        Raises:
            ModelLoadError: One is missing, or has another shape.
        """

    def inputs(self, name: str, *shape: int) -> torch.Tensor:
        """A share of the columns of the tensor called ``name``.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """

    def rows_of(self, whole: torch.Tensor) -> torch.Tensor:
        """A share of the rows of a tensor that :meth:`whole` gave."""

    def wait(self) -> None:
        """Return when all that was asked for is there.

        Raises:
            ModelLoadError: Something could not be read.
        """


class Checkpoint:
    """The tensors of one folder. One thread at a time.

    Attributes:
        num_parameters: Numbers read so far.
    """

    def __init__(self, folder: Path, dtype: torch.dtype, progress: Progress | None = None) -> None:
        """Open the folder's weights, to be read as ``dtype``.

        Raises:
            ModelLoadError: There are none, or a file is damaged or missing.
        """
        self.folder = folder
        self.dtype = dtype
        self._progress = progress
        self._files: list[Any] = []
        self._home: dict[str, Any] = {}
        paths = _weight_files(folder)
        self._total = sum(path.stat().st_size for path in paths)
        self._loaded = 0
        self.num_parameters = 0
        for path in paths:
            try:
                file: Any = safe_open(path, framework="pt")
            except (OSError, SafetensorError) as error:
                raise ModelLoadError(f"cannot read the weights in {path}: {error}") from error
            self._files.append(file)
            self._home |= dict.fromkeys(file.keys(), file)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._files.clear()
        self._home.clear()
        if error is None and self._progress is not None:
            self._progress(self._total, self._total)

    def __contains__(self, name: str) -> bool:
        return name in self._home

    def tensor(self, name: str, shape: Sequence[int]) -> torch.Tensor:
        """The tensor called ``name``, of this shape, in the checkpoint's data type.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """
        file = self._home.get(name)
        if file is None:
            raise ModelLoadError(f"the weights in {self.folder} lack {name!r}")
        found: torch.Tensor = file.get_tensor(name)
        if tuple(found.shape) != tuple(shape):
            raise ModelLoadError(
                f"{name!r} in {self.folder} has shape {list(found.shape)}; config.json wants "
                f"{list(shape)}"
            )
        if not found.is_floating_point():
            raise ModelLoadError(
                f"{name!r} in {self.folder} is {found.dtype}: quantized weights are not supported"
            )
        self._loaded += found.nbytes
        self.num_parameters += found.numel()
        if self._progress is not None:
            self._progress(self._loaded, self._total)
        return found.to(self.dtype)

    def whole(self, name: str, *shape: int) -> torch.Tensor:
        """See :class:`Weights`."""
        return self.tensor(name, shape).contiguous()

    def outputs(self, rows: Mapping[str, int], *rest: int) -> torch.Tensor:
        """See :class:`Weights`."""
        if len(rows) == 1:
            ((name, count),) = rows.items()
            return self.tensor(name, (count, *rest))
        out = torch.empty(sum(rows.values()), *rest, dtype=self.dtype)
        start = 0
        for name, count in rows.items():
            out[start : start + count] = self.tensor(name, (count, *rest))
            start += count
        return out

    def inputs(self, name: str, *shape: int) -> torch.Tensor:
        """See :class:`Weights`."""
        return self.tensor(name, shape)

    def rows_of(self, whole: torch.Tensor) -> torch.Tensor:
        """See :class:`Weights`."""
        return whole

    def wait(self) -> None:
        """See :class:`Weights`."""


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file():
        raise ModelLoadError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = sorted(set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"cannot read {index}: {error}") from error
    paths = [folder / name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}, named in {INDEX_FILE}")
    return paths

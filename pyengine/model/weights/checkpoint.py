"""Weights from a Hugging Face folder: model.safetensors, or shards with an index.

The files are mapped into memory. What an architecture does not ask for is never read.
"""

import json
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.mapped import safetensors
from pyengine.model.weights.matrix import Dense

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


class Checkpoint:
    """The tensors of one folder; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(self, folder: Path) -> None:
        """Map the folder's weights.

        Raises:
            ModelLoadError: There are none, or a file is damaged or missing.
        """
        self._folder = folder
        self._tensors: dict[str, NDArray[Any]] = {}
        paths = _weight_files(folder)
        self.nbytes = sum(path.stat().st_size for path in paths)
        for path in paths:
            self._tensors |= safetensors(path)

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        return self.floats(name, (size,))

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Dense:
        """See :class:`Source`."""
        return Dense(self.floats(name, shape)[rows, columns])

    def floats(self, name: str, shape: tuple[int, ...]) -> NDArray[Any]:
        """The tensor called ``name``, of this shape; a view of its file.

        Raises:
            ModelLoadError: It is missing, has another shape, or is quantized.
        """
        found = self._tensors.get(name)
        if found is None:
            raise ModelLoadError(f"the weights in {self._folder} lack {name!r}")
        if found.shape != shape:
            raise ModelLoadError(
                f"{name!r} in {self._folder} has shape {list(found.shape)}; config.json wants "
                f"{list(shape)}"
            )
        if found.dtype not in FLOATS:
            raise ModelLoadError(
                f"{name!r} in {self._folder} is {found.dtype}, and no 'quantization_config' in "
                "config.json says what that means"
            )
        return found


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

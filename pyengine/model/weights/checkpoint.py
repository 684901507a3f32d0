"""Weights from a Hugging Face folder: model.safetensors, or shards with an index.

The files are mapped into memory. What an architecture does not ask for is never read.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.text_part import plain_name
from pyengine.model.weights.hub import refusal_of_bin
from pyengine.model.weights.mapped import safetensors
from pyengine.model.weights.matrix import Dense, Part
from pyengine.model.weights.quantization.scheme import QuantizationScheme
from pyengine.model.weights.tensors import FLOATS, Tensors

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class Checkpoint:
    """The tensors of one folder; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(self, folder: Path, scheme: QuantizationScheme | None = None) -> None:
        """Map the folder's weights.

        Args:
            folder: In Hugging Face format.
            scheme: Which layers are quantized, and how; None: none is.

        Raises:
            ModelLoadError: There are none, or a file is damaged or missing.
        """
        self._scheme = scheme
        paths = _weight_files(folder)
        self.nbytes = sum(path.stat().st_size for path in paths)
        found: dict[str, NDArray[Any]] = {}
        for path in paths:
            found |= {plain_name(name): of for name, of in safetensors(path).items()}
        self._tensors = Tensors(folder, found)

    def vector(self, name: str, size: int) -> NDArray[Any]:
        """See :class:`Source`."""
        return self._tensors.floats(name, size)

    def matrix(self, name: str, shape: tuple[int, int], rows: slice, columns: slice) -> Part:
        """See :class:`Source`."""
        # The files are right where config.json does not list all layers that are dense.
        if self._scheme is not None and self._tensors.dtype(name) not in FLOATS:
            layer = name.removesuffix(".weight")
            reader = self._scheme.reader(layer)
            if reader is not None:
                return reader(self._tensors, layer, shape, rows, columns)
        return Dense(self._tensors.floats(name, *shape)[rows, columns])

    def scale(self, names: Sequence[str]) -> float | None:
        """See :class:`Source`."""
        return self._tensors.scale(names)


def _weight_files(folder: Path) -> list[Path]:
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file() and any(folder.glob("*.bin")):
        raise ModelLoadError(refusal_of_bin(str(folder)))
    if not index.is_file() and (ggufs := sorted(folder.glob("*.gguf"))):
        raise ModelLoadError(
            f"{folder} has no safetensors but GGUF files: give one of them as the model, such as "
            f"{ggufs[0]}"
        )
    if not index.is_file():
        raise ModelLoadError(f"{folder} has neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        names = sorted({str(name) for name in weight_map.values()})
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise ModelLoadError(f"cannot read {index}: {error}") from error
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ModelLoadError(f"{index} names a file outside the folder: {outside[0]!r}")
    paths = [folder / name for name in names]
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}, named in {INDEX_FILE}")
    return paths

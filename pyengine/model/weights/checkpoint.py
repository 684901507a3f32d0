"""Weights from a Hugging Face folder: model.safetensors, shards, or files of any name.

The files are mapped into memory. What an architecture does not ask for is never read.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.text_part import plain_name
from pyengine.model.weights.hub import refusal_of_bin
from pyengine.model.weights.mapped import safetensors
from pyengine.model.weights.matrix import Dense, Part
from pyengine.model.weights.quantization.scheme import QuantizationScheme
from pyengine.model.weights.stacked import place
from pyengine.model.weights.tensors import FLOATS, Tensors
from pyengine.model.weights.unread import check_all_read
from pyengine.model.weights.whole_folder import check_folder
from pyengine.tokenizer.json_files import read_json

SINGLE_FILE = "model.safetensors"
HEAD_AND_TABLE = ("lm_head", "model.embed_tokens")
"""Where a model says that they are tied, files may have one weight twice."""
COMPARED_ROWS = 4096
INDEX_FILE = "model.safetensors.index.json"
ADAPTER, SECOND = "adapter_model.safetensors", "consolidated"


class Checkpoint:
    """The tensors of one folder; see :class:`pyengine.model.weights.sharding.Source`."""

    def __init__(
        self, folder: Path, scheme: QuantizationScheme | None = None, body: str = "model."
    ) -> None:
        """Map the folder's weights.

        Args:
            folder: In Hugging Face format.
            scheme: Which layers are quantized, and how; None: none is.
            body: What the names of all tensors but the head's begin with. Files of a body that was
                saved without its head lack it.

        Raises:
            ModelLoadError: There are none, or a file is damaged or missing.
        """
        self._scheme = scheme
        paths = _weight_files(folder)
        self.nbytes = sum(path.stat().st_size for path in paths)
        found: dict[str, NDArray[Any]] = {}
        for path in paths:
            tensors = {plain_name(name): of for name, of in safetensors(path).items()}
            if twice := found.keys() & tensors.keys():
                raise ModelLoadError(
                    f"{folder} has {min(twice)!r} in {path.name} and in another file: leave one "
                    "model's files in it"
                )
            found |= tensors
        if body and not any(name.startswith(body) for name in found):
            found = {body + name: tensor for name, tensor in found.items()}
        self._tensors = Tensors(folder, found)
        self._quantized: set[str] = set()

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
                self._quantized.add(place(layer).tensor)
                return reader(self._tensors, layer, shape, rows, columns)
        return Dense(self._tensors.floats(name, *shape)[rows, columns])

    def check_all_read(self, config: Mapping[str, Any], *, some: bool = False) -> None:
        """See :class:`Source`."""
        tied = config.get("tie_word_embeddings")
        head, table = (self._tensors.get(f"{name}.weight") for name in HEAD_AND_TABLE)
        if tied and head is not None and table is not None and head.shape == table.shape:
            rows = slice(None, None, 1 + len(head) // COMPARED_ROWS)
            if np.array_equal(head[rows], table[rows]):
                self._tensors.asked.add(f"{HEAD_AND_TABLE[0]}.weight")
        check_all_read(self._tensors, self._tensors.asked, self._quantized, config, some=some)

    def scale(self, names: Sequence[str]) -> float | None:
        """See :class:`Source`."""
        return self._tensors.scale(names)

    def has(self, name: str) -> bool:
        """See :class:`Source`."""
        return name in self._tensors


def _weight_files(folder: Path) -> list[Path]:
    check_folder(folder)
    single, index = folder / SINGLE_FILE, folder / INDEX_FILE
    if single.is_file():
        return [single]
    if not index.is_file() and (files := _files_of_any_name(folder)):
        return files
    if not index.is_file() and any(folder.glob("*.bin")):
        raise ModelLoadError(refusal_of_bin(str(folder)))
    if not index.is_file() and (ggufs := sorted(folder.glob("*.gguf"))):
        raise ModelLoadError(
            f"{folder} has no safetensors but GGUF files: give one of them as the model, such as "
            f"{ggufs[0]}"
        )
    if not index.is_file():
        raise ModelLoadError(f"{folder} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}")
    try:
        names = sorted({str(name) for name in read_json(index)["weight_map"].values()})
        missing = [name for name in names if not (folder / name).is_file()]
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ModelLoadError(f"cannot read {index}: {error}") from error
    outside = [name for name in names if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        raise ModelLoadError(f"{index} names a file outside the folder: {outside[0]!r}")
    if missing:
        raise ModelLoadError(f"{folder} lacks {', '.join(missing)}, named in {INDEX_FILE}")
    return [folder / name for name in names]


def _files_of_any_name(folder: Path) -> list[Path]:
    """The safetensors of a folder without an index, but Mistral's second ones and adapters."""
    files = sorted(folder.glob("*.safetensors"))
    left = [file for file in files if file.name != ADAPTER and not file.name.startswith(SECOND)]
    if files and not left:
        raise ModelLoadError(
            f"{folder} has weights in {files[0].name} alone, whose names are not those of Hugging "
            "Face: give a folder with model.safetensors"
        )
    return left

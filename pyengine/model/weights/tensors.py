"""The tensors of a folder, by name and shape."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.stacked import place

FLOATS = (np.float64, np.float32, np.float16, ml_dtypes.bfloat16)


class Tensors:
    """Views of a folder's files.

    Attributes:
        folder: The folder.
        asked: The tensors that were read or looked for.
    """

    def __init__(self, folder: Path, tensors: Mapping[str, NDArray[Any]]) -> None:
        """``tensors`` of ``folder``, which errors name."""
        self.folder = folder
        self.asked: set[str] = set()
        self._tensors = tensors

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def get(self, name: str) -> NDArray[Any] | None:
        """The whole tensor of that name, which does not count as asked for; None: there is none."""
        return self._tensors.get(name)

    def dtype(self, name: str) -> np.dtype[Any] | None:
        """The type of the tensor called ``name``; None where there is none."""
        found = self._tensors.get(place(name).tensor)
        self.asked.add(place(name).tensor)
        return None if found is None else found.dtype

    def tensor(self, name: str, *shape: int) -> NDArray[Any]:
        """The tensor called ``name``, or one of several in a tensor; see :mod:`.stacked`.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """
        at = place(name)
        found = self._tensors.get(at.tensor)
        self.asked.add(at.tensor)
        if found is None or (at.number is not None and at.number >= len(found)):
            raise ModelLoadError(f"the weights in {self.folder} lack {name!r}")
        if at.number is not None:
            found = found[at.number]
        if at.flat:
            found = found.reshape(-1)
        # transformers writes some of them by outputs again.
        if at.transposed and found.shape == shape[::-1]:
            found = found.T
        if found.shape != shape:
            raise ModelLoadError(
                f"{name!r} in {self.folder} has shape {list(found.shape)}; config.json wants "
                f"{list(shape)}"
            )
        return found

    def floats(self, name: str, *shape: int) -> NDArray[Any]:
        """The tensor called ``name``, which is not quantized.

        Raises:
            ModelLoadError: As for :meth:`tensor`, or it is quantized.
        """
        found = self.tensor(name, *shape)
        if found.dtype not in FLOATS:
            raise ModelLoadError(
                f"{name!r} in {self.folder} is {found.dtype}, and no 'quantization_config' in "
                "config.json says what that means"
            )
        return found

    def scale(self, names: Sequence[str]) -> float | None:
        """The number in the first of these tensors that exists; None: none does.

        Raises:
            ModelLoadError: It has several numbers, or none that a scale can be.
        """
        self.asked |= set(names)
        found = next((self._tensors[name] for name in names if name in self._tensors), None)
        if found is None:
            return None
        if found.size != 1 or not 0 < float(found.reshape(())) < float("inf"):
            raise ModelLoadError(
                f"the scale {names[0]!r} in {self.folder} is not one number above 0 but "
                f"{list(found.shape)}: a layer's cache has one for keys and one for values"
            )
        return float(found.reshape(()))

    def scales(self, name: str, rows: int, groups: int) -> NDArray[np.float32]:
        """Scales [rows, groups], float32; in the file one for each row or for all may stand.

        Raises:
            ModelLoadError: It is missing, or has another shape.
        """
        found = self._tensors.get(name)
        if found is not None and found.shape in ((), (1,), (1, 1), (rows,), (rows, 1)):
            found = found.reshape(-1, 1)
            return np.broadcast_to(found.astype(np.float32), (rows, groups))
        return self.tensor(name, rows, groups).astype(np.float32)

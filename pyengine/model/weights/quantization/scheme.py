"""The interface of schemes, which say what layers of a folder are quantized and how.

A reader turns what a layer has in the files into a :class:`pyengine.model.weights.matrix.Part`.
"""

from collections.abc import Mapping
from typing import Any, Protocol

from pyengine.errors import ModelLoadError
from pyengine.model.weights.matrix import Part
from pyengine.model.weights.tensors import Tensors


class Reader(Protocol):
    """Reads the layers that are stored in one way."""

    def __call__(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Part:
        """Rows and columns of a layer's weights, of [*shape].

        Args:
            tensors: The tensors of the folder.
            layer: The layer's name, which those of its tensors begin with.
            shape: The shape of all its weights.
            rows: Some outputs.
            columns: Some inputs.

        Raises:
            ModelLoadError: A tensor is missing or has another shape.
            ConfigError: The columns are not cut at a border of groups.
        """


class QuantizationScheme(Protocol):
    """Says which layers are quantized, and how."""

    def reader(self, layer: str) -> Reader | None:
        """The reader of the weights of ``layer``; None: they are dense."""


def is_ignored(layer: str, names: object) -> bool:
    """Whether ``layer`` is one of ``names``, or within one of them."""
    given = names if isinstance(names, list) else []
    return any(layer == name or f".{layer}.".find(f".{name}.") >= 0 for name in given)


def refuse(given: Mapping[str, Any], **supported: tuple[Any, ...]) -> None:
    """Check fields of a quantization_config; one that is missing is as good as the first value.

    Raises:
        ModelLoadError: A field has another value than those that are supported.
    """
    for name, values in supported.items():
        found = given.get(name, values[0])
        if found not in values:
            known = ", ".join(map(repr, values))
            raise ModelLoadError(
                f"config.json: quantized weights with {name!r} of {found!r} are not supported; "
                f"there are: {known}"
            )

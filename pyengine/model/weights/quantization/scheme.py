"""Which layers of a folder are quantized, and how: from 'quantization_config' of its config.json.

A reader turns what a layer has in the files into a :class:`pyengine.model.weights.matrix.Part`.
"""

from collections.abc import Callable, Mapping
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
            tensors: Of the folder.
            layer: The layer's name, which those of its tensors begin with.
            shape: Of all its weights.
            rows: Some outputs.
            columns: Some inputs.

        Raises:
            ModelLoadError: A tensor is missing or has another shape.
            ConfigError: The columns are not cut at a border of groups.
        """


class QuantizationScheme(Protocol):
    """Which layers are quantized, and how."""

    def reader(self, layer: str) -> Reader | None:
        """What reads the weights of ``layer``; None: they are dense."""


Make = Callable[[Mapping[str, Any]], QuantizationScheme]


def find_scheme(config: Mapping[str, Any]) -> QuantizationScheme | None:
    """The scheme of a model's config.json; None where nothing is quantized.

    Raises:
        ModelLoadError: The format, or something about it, is not supported; says what.
    """
    given = config.get("quantization_config") or config.get("compression_config")
    if not given:
        return None
    if not isinstance(given, Mapping):
        raise ModelLoadError(f"config.json: 'quantization_config' is no object: {given!r}")
    method = str(given.get("quant_method") or "unknown")
    make = _methods().get(method)
    if make is None:
        known = ", ".join(sorted(_methods()))
        raise ModelLoadError(
            f"weights quantized by {method!r} are not supported; there are: {known}"
        )
    return make(given)


def _methods() -> dict[str, Make]:
    from pyengine.model.weights.quantization.awq import Awq
    from pyengine.model.weights.quantization.compressed_tensors import CompressedTensors
    from pyengine.model.weights.quantization.fp8 import BlockFp8
    from pyengine.model.weights.quantization.gptq import Gptq

    return {"awq": Awq, "compressed-tensors": CompressedTensors, "fp8": BlockFp8, "gptq": Gptq}


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

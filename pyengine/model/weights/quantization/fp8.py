"""8-bit floats with a scale for each block, as DeepSeek and Qwen publish them, or for each tensor.

::

    weight            float8_e4m3 [out, in]
    weight_scale_inv  float32 [out / 128, in / 128]     the factor of a block, whatever its name
    weight_scale      float32 []                        of a whole tensor, where there are no blocks

Rows of activations become 8 bits, too, with scales of their own; those that 'activation_scheme' has
in the files ("static") are not read, as a scale of each row is at least as exact. They keep their
type where a folder has no scheme, or asks for its weights to be computed with as dense ones
('dequantize').
"""

from collections.abc import Mapping
from typing import Any

import ml_dtypes

from pyengine.errors import ModelLoadError
from pyengine.model.weights.float8 import Float8, Float8Activations
from pyengine.model.weights.quantization.scheme import Reader, is_ignored, refuse
from pyengine.model.weights.tensors import Tensors


class BlockFp8:
    """All linear layers but those of 'modules_to_not_convert', and those the files have dense."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config'.

        Raises:
            ModelLoadError: It asks for what is not supported.
        """
        refuse(given, fmt=("e4m3",), activation_scheme=("dynamic", "static", None))
        kept = given.get("dequantize") or given.get("activation_scheme", "dynamic") is None
        self._activations = None if kept else Float8Activations()
        block = given.get("weight_block_size")
        self._block = (int(block[0]), int(block[1])) if block else None
        ignored = given.get("modules_to_not_convert") or given.get("ignored_layers")
        self._ignored = ignored

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return None if is_ignored(layer, self._ignored) else self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Float8:
        block = self._block or shape
        name = "weight_scale_inv" if self._block else "weight_scale"
        weight = float8(tensors, layer, shape, block, name, self._activations)
        return weight.rows(rows).columns(columns)


def float8(
    tensors: Tensors,
    layer: str,
    shape: tuple[int, int],
    block: tuple[int, int],
    scales: str,
    activations: Float8Activations | None,
) -> Float8:
    """The weights of a layer of 8-bit floats, whose scales are called ``scales``.

    Args:
        tensors: The tensors of the folder.
        layer: The layer's name.
        shape: The shape of its weights.
        block: Outputs and inputs that share a scale.
        scales: The scales' name within the layer.
        activations: How rows become 8 bits, if they do.

    Raises:
        ModelLoadError: A tensor is missing, or has another shape or type.
    """
    weight = tensors.tensor(f"{layer}.weight", *shape)
    if weight.dtype != ml_dtypes.float8_e4m3fn:
        raise ModelLoadError(
            f"'{layer}.weight' in {tensors.folder} is {weight.dtype}; config.json promises "
            "float8_e4m3"
        )
    blocks = (-(-size // side) for size, side in zip(shape, block, strict=True))
    found = tensors.scales(f"{layer}.{scales}", *blocks)
    return Float8(weight, found, block, activations=activations)

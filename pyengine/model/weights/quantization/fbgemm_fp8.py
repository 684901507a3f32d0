"""8-bit floats with a scale for each output, as FBGEMM computes with them (Grattafiori et al., "The
Llama 3 Herd of Models", 2024, 6.2).

::

    weight         float8_e4m3 [out, in]
    weight_scale   float32 [out, 1]

Rows of activations become 8 bits, too, each with a scale that is made for numbers of at most
'activation_scale_ub': a larger one costs its own precision, not that of its row.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.weights.float8 import Float8, Float8Activations
from pyengine.model.weights.quantization.fp8 import float8
from pyengine.model.weights.quantization.scheme import Reader, is_ignored
from pyengine.model.weights.tensors import Tensors

BOUND = 1200.0
"""What 'activation_scale_ub' is where it is not given."""


class FbgemmFp8:
    """All linear layers but those of 'modules_to_not_convert', and those the files have dense."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config'.

        Raises:
            ModelLoadError: Its bound is none.
        """
        bound = given.get("activation_scale_ub", BOUND)
        if not isinstance(bound, int | float) or not bound > 0:
            raise ModelLoadError(
                f"config.json: 'activation_scale_ub' must be a number above 0, not {bound!r}"
            )
        self._activations = Float8Activations(float(bound))
        self._ignored = given.get("modules_to_not_convert")

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return None if is_ignored(layer, self._ignored) else self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Float8:
        by_output = (1, shape[1])
        weight = float8(tensors, layer, shape, by_output, "weight_scale", self._activations)
        return weight.rows(rows).columns(columns)

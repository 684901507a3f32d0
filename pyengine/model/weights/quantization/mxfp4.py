"""MXFP4 as gpt-oss has it::

gate_up_proj_blocks   uint8 [experts, out, in / 32, 16]   two numbers a byte, the first one low
gate_up_proj_scales   uint8 [experts, out, in / 32]       exponents, moved up by 127
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.weights.microscaled import GROUP, Microscaled
from pyengine.model.weights.quantization.scheme import Reader
from pyengine.model.weights.tensors import Tensors


class Mxfp4:
    """The experts of gpt-oss; all else is dense in the files, whatever the config lists."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config', which says no more than its name."""

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Microscaled:
        # The blocks lie by outputs, though the dense weights that they came from do not.
        name, _, index = layer.removesuffix(".T").rpartition("[")
        groups = shape[1] // GROUP
        blocks = tensors.tensor(f"{name}_blocks[{index}", shape[0], groups, GROUP // 2)[rows]
        exponents = tensors.tensor(f"{name}_scales[{index}", shape[0], groups)[rows]
        return Microscaled(blocks.reshape(len(blocks), -1), exponents).columns(columns)

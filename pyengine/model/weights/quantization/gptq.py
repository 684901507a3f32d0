"""GPTQ (Frantar et al., "GPTQ: Accurate Post-Training Quantization [...]", 2022), as AutoGPTQ and
GPTQModel write it.

::

    qweight  int32 [in / n, out]        n = 32 / bits inputs a word, the lowest bits first
    qzeros   int32 [groups, out / n]    n outputs a word; less one in version 1 of the format
    scales   float16 [groups, out]
    g_idx    int32 [in]                 the group of each input; with desc_act in no order
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.matrix import Dense, Packed, Part
from pyengine.model.weights.quantization.scheme import Reader, is_ignored, refuse
from pyengine.model.weights.quantization.words import packed_values, unpacked
from pyengine.model.weights.tensors import Tensors


class Gptq:
    """All linear layers but those that the files have dense."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config'.

        Raises:
            ModelLoadError: It asks for what is not supported.
        """
        refuse(given, bits=(4, 8), checkpoint_format=("gptq", "gptq_v2"), dynamic=(None, {}))
        self._bits = int(given.get("bits") or 4)
        self._group = int(given.get("group_size") or -1)
        self._symmetric = bool(given.get("sym", True))
        self._version = 2 if given.get("checkpoint_format") == "gptq_v2" else 1
        self._ignored = given.get("modules_to_not_convert")

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return None if is_ignored(layer, self._ignored) else self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Part:
        (outputs, inputs), bits = shape, self._bits
        group = inputs if self._group == -1 else self._group
        groups, per_word = -(-inputs // group), 32 // bits
        stored = tensors.tensor(f"{layer}.qweight", inputs // per_word, outputs)[:, rows]
        values = unpacked(stored.T, bits)
        scales = tensors.tensor(f"{layer}.scales", groups, outputs)[:, rows]
        zeros = self._zeros(tensors.tensor(f"{layer}.qzeros", groups, outputs // per_word))
        packed = Packed(
            packed_values(values, bits),
            np.ascontiguousarray(scales.T.astype(np.float32)),
            np.ascontiguousarray(zeros[:, rows].T),
            None,
            bits,
            group,
        )
        in_order = np.arange(inputs) // group
        order = in_order
        if f"{layer}.g_idx" in tensors:
            order = tensors.tensor(f"{layer}.g_idx", inputs)
            if order.min() < 0 or order.max() >= groups:
                raise ModelLoadError(f"'{layer}.g_idx' in {tensors.folder} names no group")
        if np.array_equal(order, in_order):
            return packed.columns(columns)
        return Dense(_ungrouped(values, packed, order)[:, columns])

    def _zeros(self, stored: NDArray[Any]) -> NDArray[np.uint8]:
        """Zero points [groups, out].

        Where all are symmetric, the numbers tell the version: files are known that name the other.
        """
        zeros = unpacked(stored, self._bits)
        version, middle = self._version, 1 << self._bits - 1
        if self._symmetric and (zeros == middle - 1).all():
            version = 1
        elif self._symmetric and (zeros == middle).all():
            version = 2
        return zeros if version == 2 else zeros + np.uint8(1) & np.uint8((1 << self._bits) - 1)


def _ungrouped(
    values: NDArray[np.uint8], packed: Packed, order: NDArray[Any]
) -> NDArray[np.float32]:
    """The weights of inputs whose groups are in no order (desc_act), which no kernel takes."""
    assert packed.zeros is not None
    numbers = values.astype(np.int16) - packed.zeros[:, order].astype(np.int16)
    weights: NDArray[np.float32] = numbers.astype(np.float32) * packed.scales[:, order]
    return weights

"""AWQ (Lin et al., "AWQ: Activation-aware Weight Quantization", 2023), as AutoAWQ's GEMM has it.

::

    qweight  int32 [in, out / 8]        eight outputs a word, in the order 0 2 4 6 1 3 5 7
    qzeros   int32 [groups, out / 8]
    scales   float16 [groups, out]
"""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.matrix import Packed
from pyengine.model.weights.quantization.scheme import Reader, is_ignored, refuse
from pyengine.model.weights.quantization.words import packed_values, unpacked
from pyengine.model.weights.tensors import Tensors

PER_WORD = 8
PLACES = np.array([0, 4, 1, 5, 2, 6, 3, 7])
"""Where in a word each of eight outputs lies."""


class Awq:
    """All linear layers but those of 'modules_to_not_convert', and the head."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config'.

        Raises:
            ModelLoadError: It asks for what is not supported.
        """
        refuse(given, bits=(4,), zero_point=(True,), version=("gemm", "GEMM"))
        self._group = int(given.get("group_size") or given.get("q_group_size") or 128)
        self._ignored = given.get("modules_to_not_convert")

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        return None if layer == "lm_head" or is_ignored(layer, self._ignored) else self._read

    def _read(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Packed:
        outputs, inputs = shape
        group = inputs if self._group == -1 else self._group
        groups = inputs // group
        words = slice(rows.start // PER_WORD, -(-rows.stop // PER_WORD))
        mine = slice(rows.start - words.start * PER_WORD, rows.stop - words.start * PER_WORD)

        def numbers(name: str, length: int) -> NDArray[np.uint8]:
            stored = tensors.tensor(f"{layer}.{name}", length, outputs // PER_WORD)[:, words]
            ordered = unpacked(stored, 4).reshape(length, -1, PER_WORD)[..., PLACES]
            return np.ascontiguousarray(ordered.reshape(length, -1).T[mine])

        scales = tensors.tensor(f"{layer}.scales", groups, outputs)[:, rows]
        return Packed(
            packed_values(numbers("qweight", inputs), 4),
            np.ascontiguousarray(scales.T.astype(np.float32)),
            numbers("qzeros", groups),
            None,
            4,
            group,
        ).columns(columns)

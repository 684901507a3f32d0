"""compressed-tensors, the format of llm-compressor: integers packed in words or not, 8-bit floats.

::

    pack-quantized   weight_packed      int32 [out, in * bits / 32], 0 being half of the range
                     weight_scale       [out, groups]
                     weight_zero_point  int32 [out * bits / 32, groups], where not symmetric
    int-quantized    weight             int8 [out, in]
                     weight_scale, weight_zero_point  [out, 1]
    float-quantized  weight             float8_e4m3 [out, in]
                     weight_scale       [1], [out, 1], or by block

Where 'input_activations' are 8-bit floats, rows meet weights of such as such (W8A8), by scales that
kernels compute for each of them, whatever scales a folder has. All other rows keep their type, so
that they are at least as exact as a folder asks for.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError
from pyengine.model.weights.float8 import Float8Activations
from pyengine.model.weights.matrix import Packed, Part
from pyengine.model.weights.quantization.fp8 import float8
from pyengine.model.weights.quantization.scheme import Reader, refuse
from pyengine.model.weights.quantization.words import packed_values, unpacked
from pyengine.model.weights.tensors import Tensors

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "mixed-precision",
    "dense",
)


class CompressedTensors:
    """The layers that the groups' targets name, but those that are ignored."""

    def __init__(self, given: Mapping[str, Any]) -> None:
        """The scheme of a 'quantization_config'.

        Raises:
            ModelLoadError: It asks for what is not supported.
        """
        refuse(given, format=FORMATS)
        for name, key in (("sparsity_config", "format"), ("transform_config", "config_groups")):
            if (given.get(name) or {}).get(key) not in (None, {}, "dense"):
                raise ModelLoadError(f"config.json: {name!r} of weights is not supported")
        self._ignored = list(given.get("ignore") or [])
        self._groups = [
            (list(group.get("targets") or []), _Weights.of(group, given))
            for group in (given.get("config_groups") or {}).values()
            if group.get("weights")
        ]

    def reader(self, layer: str) -> Reader | None:
        """See :class:`QuantizationScheme`."""
        if any(_names(target, layer) for target in self._ignored):
            return None
        # A target that names the layer goes before one of all linear layers.
        for wanted in (False, True):
            for targets, weights in self._groups:
                if any(
                    target == "Linear" if wanted else _names(target, layer) for target in targets
                ):
                    return weights
        return None


def _names(target: str, layer: str) -> bool:
    """Whether a target, a regular expression behind ``re:``, names ``layer``."""
    if target.startswith("re:"):
        return re.match(target[3:], layer) is not None
    return target == layer or layer.endswith(f".{target}")


@dataclass(frozen=True)
class _Weights:
    """How the weights of a group of layers are stored; reads them, see :class:`Reader`."""

    bits: int
    is_float: bool
    symmetric: bool
    strategy: str
    group: int
    block: tuple[int, int] | None
    activations: Float8Activations | None

    @classmethod
    def of(cls, group: Mapping[str, Any], given: Mapping[str, Any]) -> "_Weights":
        refuse(group, format=(given.get("format"), *FORMATS, None))
        weights: Mapping[str, Any] = group["weights"]
        refuse(weights, type=("int", "float"), dynamic=(False, None))
        is_float = weights.get("type") == "float"
        refuse(weights, num_bits=(8,) if is_float else (4, 8))
        refuse(weights, actorder=(None, "static", "weight", "group", "dynamic"))
        strategy = weights.get("strategy") or ("group" if weights.get("group_size") else "tensor")
        refuse({"strategy": strategy}, strategy=("tensor", "channel", "group", "block"))
        if strategy == "block" and not is_float:
            raise ModelLoadError("config.json: integers in blocks are not supported")
        block = weights.get("block_structure")
        return cls(
            int(weights.get("num_bits", 8)),
            is_float,
            bool(weights.get("symmetric", True)),
            strategy,
            int(weights.get("group_size") or -1),
            (int(block[0]), int(block[1])) if block else None,
            _activations(group.get("input_activations")),
        )

    def __call__(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice, columns: slice
    ) -> Part:
        """See :class:`Reader`."""
        outputs, inputs = shape
        if self.is_float:
            by_row = {"tensor": shape, "channel": (1, inputs), "group": (1, self.group)}
            block = self.block or by_row[self.strategy]
            weight = float8(tensors, layer, shape, block, "weight_scale", self.activations)
            return weight.rows(rows).columns(columns)
        if f"{layer}.weight_g_idx" in tensors:
            raise ModelLoadError(
                f"'{layer}.weight_g_idx' in {tensors.folder}: groups in the order of activations "
                "('actorder' of 'group') are not supported"
            )
        group = self.group if self.strategy == "group" else inputs
        packed = Packed(
            self._values(tensors, layer, shape, rows),
            np.ascontiguousarray(
                tensors.scales(f"{layer}.weight_scale", outputs, inputs // group)[rows]
            ),
            None if self.symmetric else self._zeros(tensors, layer, outputs, inputs // group)[rows],
            None,
            self.bits,
            group,
        )
        return packed.columns(columns)

    def _values(
        self, tensors: Tensors, layer: str, shape: tuple[int, int], rows: slice
    ) -> NDArray[np.uint8]:
        """Unsigned where there are zeros or four bits, else in two's complement."""
        outputs, inputs = shape
        if f"{layer}.weight_packed" in tensors:
            words = -(-inputs * self.bits // 32)
            stored = tensors.tensor(f"{layer}.weight_packed", outputs, words)[rows]
            numbers = unpacked(stored, self.bits)[:, :inputs]
        else:
            signed = tensors.tensor(f"{layer}.weight", *shape)[rows]
            if signed.dtype != np.int8:
                raise ModelLoadError(f"'{layer}.weight' in {tensors.folder} is no int8")
            numbers = _unsigned(signed, self.bits)
        if self.bits == 8 and self.symmetric:
            numbers = numbers ^ np.uint8(0x80)
        return packed_values(numbers, self.bits)

    def _zeros(self, tensors: Tensors, layer: str, outputs: int, groups: int) -> NDArray[np.uint8]:
        """Zero points [out, groups], unsigned as the values are."""
        name = f"{layer}.weight_zero_point"
        if tensors.dtype(name) == np.int32:
            words = tensors.tensor(name, -(-outputs * self.bits // 32), groups)
            return np.ascontiguousarray(unpacked(words.T, self.bits)[:, :outputs].T)
        signed = np.broadcast_to(
            tensors.scales(name, outputs, groups).astype(np.int8), (outputs, groups)
        )
        return _unsigned(signed, self.bits)


def _activations(given: Mapping[str, Any] | None) -> Float8Activations | None:
    """The quantization of activations that a group's 'input_activations' ask for."""
    floats = given is not None and given.get("type") == "float" and given.get("num_bits", 8) == 8
    return Float8Activations() if floats else None


def _unsigned(signed: NDArray[np.int8], bits: int) -> NDArray[np.uint8]:
    """Numbers from -2^(bits - 1) on, moved to those from 0 on."""
    return (signed.astype(np.int16) + (1 << bits - 1)).astype(np.uint8)

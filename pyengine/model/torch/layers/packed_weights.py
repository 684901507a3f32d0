"""Quantized weights brought to a device as they are stored, for the products that take them so."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.kernels.layers.packed_tensor import PackedTensor, takes_groups
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.weights.float8 import Float8, scales_of_steps, step_of
from pyengine.model.weights.matrix import Matrix, Packed, Part
from pyengine.model.weights.microscaled import GROUP, Microscaled

DTYPES = (torch.bfloat16, torch.float16)
"""The types of rows that such products take."""

_FLOAT8 = (8, 9)
"""The compute capability from which on a GPU reads floats of 8 bits."""

_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


@dataclass(frozen=True)
class Share:
    """Neighbouring outputs of layers that are stored alike.

    Attributes:
        outputs: Which ones of a layer.
        weight: The weights of the layers, [layers, outputs, inputs].
    """

    outputs: slice
    weight: PackedTensor


def stay_packed(weights: Sequence[Matrix], device: torch.device, dtype: torch.dtype) -> bool:
    """Whether products take these as they are stored, rows of ``dtype`` and this device: all layers
    have parts of the same kinds, and a kernel takes them.
    """
    first = kinds(weights[0])
    if first is None or any(kinds(weight) != first for weight in weights[1:]):
        return False
    floats = any(isinstance(part, Float8) for part in weights[0].parts)
    return has_products(device, dtype, floats=floats)


def has_products(device: torch.device, dtype: torch.dtype, *, floats: bool) -> bool:
    """Whether ``device`` multiplies rows of ``dtype`` by packed weights, ``floats`` of 8 bits among
    them.
    """
    if device.type != "cuda" or dtype not in DTYPES:
        return False
    return not floats or torch.cuda.get_device_capability(device) >= _FLOAT8


def kinds(weight: Matrix) -> list[tuple[object, ...]] | None:
    """The kinds of a matrix's parts, and their outputs; None where one has no product.

    A product takes neighbouring parts of one kind.
    """
    found = []
    for part in weight.parts:
        kind = _kind(part)
        if kind is None:
            return None
        found.append((part.shape[0], *kind))
    return found


def shares(weights: Sequence[Matrix], transfer: Transfer) -> list[Share]:
    """``weights`` of layers of the same :func:`kinds`, as products take them; they are filled once
    ``transfer`` was waited for.
    """
    made, start = [], 0
    places = range(len(weights[0].parts))
    for _, alike in groupby(places, lambda place: _kind(weights[0].parts[place])):
        numbers = list(alike)
        layers = [[weight.parts[number] for number in numbers] for weight in weights]
        outputs = slice(start, start + sum(part.shape[0] for part in layers[0]))
        made.append(Share(outputs, _stored(layers, transfer)))
        start = outputs.stop
    return made


def _kind(part: Part) -> tuple[object, ...] | None:
    """Equal for parts that one product can have; None where there is no product."""
    if isinstance(part, Packed) and takes_groups(part.group, part.shape[1]):
        return Packed, part.bits, part.group, part.zeros is None, part.minimums is None
    if isinstance(part, Float8) and (step := step_of(Matrix((part,)))) >= GROUP:
        return Float8, step
    return (Microscaled,) if isinstance(part, Microscaled) else None


@dataclass(frozen=True)
class _Arrays:
    """A part as a product takes it; all but the values are [groups, out]."""

    values: NDArray[Any]
    scales: NDArray[Any]
    bits: int
    group: int
    floats: bool = False
    zeros: NDArray[Any] | None = None
    minimums: NDArray[Any] | None = None


def _arrays(part: Part) -> _Arrays:
    if isinstance(part, Microscaled):
        return _Arrays(part.values, part.exponents.T, 4, GROUP, floats=True)
    if isinstance(part, Float8):
        step = step_of(Matrix((part,)))
        return _Arrays(part.values, scales_of_steps(part, step), 8, step, floats=True)
    assert isinstance(part, Packed)
    symmetric = part.zeros is None and part.minimums is None
    return _Arrays(
        part.values.view(np.int8) if part.bits == 8 and symmetric else part.values,
        part.scales.T,
        part.bits,
        part.group,
        zeros=None if part.zeros is None else part.zeros.T,
        minimums=None if part.minimums is None else part.minimums.T,
    )


def _stored(layers: Sequence[Sequence[Part]], transfer: Transfer) -> PackedTensor:
    """Parts of one kind of each layer."""
    arrays = [[_arrays(part) for part in parts] for parts in layers]
    first = arrays[0][0]
    count = len(layers)

    def by_group(name: str) -> NDArray[Any]:
        """Numbers of all parts, [layers, groups, out]."""
        return np.stack(
            [np.concatenate([getattr(part, name) for part in parts], axis=1) for parts in arrays]
        )

    def stored(numbers: NDArray[Any]) -> Any:
        return transfer.stored(list(numbers)).view(numbers.shape)

    scales = by_group("scales")
    if not first.floats:
        scales = _narrow(scales)
    values = transfer.stored([part.values for parts in arrays for part in parts])
    return PackedTensor(
        values.view(count, -1, values.shape[1]),
        stored(scales),
        None if first.zeros is None else stored(by_group("zeros")),
        None if first.minimums is None else stored(by_group("minimums")),
        first.bits,
        first.group,
        first.floats,
    )


def _narrow(scales: NDArray[np.float32]) -> NDArray[Any]:
    """``scales`` in 16 bits where these hold them exactly, as those of most files."""
    for dtype in _NARROW:
        with np.errstate(over="ignore"):
            narrow = scales.astype(dtype)
        if np.array_equal(narrow.astype(np.float32), scales):
            return narrow
    return scales

"""Linear layers whose weights are integers of 4 or 8 bits, on a GPU.

Weights alone are quantized (``W4A16``, ``W8A16``): rows keep their type, and the numbers that are
multiplied are those of a dense layer of the same file. What one layer mixes (queries in 4 bits,
values in 6) stays mixed: a product each.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

import ml_dtypes
import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.kernels.layers.packed_product import PackedTensor, takes_groups
from pyengine.model.architectures.parts import Buffer
from pyengine.model.torch.ops import TorchOps
from pyengine.model.torch.transfer import Transfer
from pyengine.model.weights.matrix import Matrix, Packed

_DTYPES = (torch.bfloat16, torch.float16)
_NARROW = (np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16))


class Device(Protocol):
    """What layers need of :class:`pyengine.model.torch.layers.parts.TorchParts`."""

    group: Group
    ops: TorchOps
    transfer: Transfer


@dataclass(frozen=True)
class _Share:
    """Neighbouring outputs of a layer that are stored alike."""

    outputs: slice
    weight: PackedTensor
    bias: torch.Tensor | None


def is_weight_only(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`WeightOnlyLinear` is for these weights, rows of ``dtype`` and this device."""
    return device.type == "cuda" and dtype in _DTYPES and has_product(weight)


def has_product(weight: Matrix) -> bool:
    """Whether all parts are integers in groups that there is a product for."""
    return all(
        isinstance(part, Packed) and takes_groups(part.group, part.shape[1])
        for part in weight.parts
    )


class WeightOnlyLinear:
    """x W^T + b."""

    def __init__(
        self, parts: Device, weight: Matrix, bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """Copy the weights.

        Args:
            parts: The parts of the device.
            weight: Of this rank, [out, in].
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        mine = None if reduce and parts.group.rank else bias
        self._shares: list[_Share] = []
        start = 0
        for _, alike in groupby(weight.parts, _kind):
            packed = [part for part in alike if isinstance(part, Packed)]
            outputs = slice(start, start + sum(part.shape[0] for part in packed))
            vector = None if mine is None else parts.transfer.vector(mine[outputs])
            self._shares.append(_Share(outputs, _tensor(packed, parts.transfer), vector))
            start = outputs.stop
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        given, result = x.tensor[:rows], out.tensor[:rows]
        for share in self._shares:
            columns = result[:, share.outputs]
            self._parts.ops.packed_product(given, share.weight, share.bias, columns)
        if self._reduce:
            self._parts.group.all_reduce(result)


def _kind(part: Any) -> tuple[object, ...]:
    """Equal for parts that one product can have."""
    return part.bits, part.group, part.zeros is None, part.minimums is None


def _tensor(parts: Sequence[Packed], transfer: Transfer) -> PackedTensor:
    """``parts`` of one kind on the device."""
    first = parts[0]
    values: list[NDArray[Any]] = [part.values for part in parts]
    if first.bits == 8 and first.zeros is None and first.minimums is None:
        values = [each.view(np.int8) for each in values]
    zeros = [part.zeros for part in parts if part.zeros is not None]
    minimums = [part.minimums for part in parts if part.minimums is not None]
    return PackedTensor(
        transfer.stored(values),
        transfer.stored([_narrow(_by_group([part.scales for part in parts]))]),
        transfer.stored([_by_group(zeros)]) if zeros else None,
        transfer.stored([_by_group(minimums)]) if minimums else None,
        first.bits,
        first.group,
    )


def _by_group(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """Numbers [out, groups] of parts as products take them: [groups, out]."""
    return np.concatenate(arrays).T


def _narrow(scales: NDArray[np.float32]) -> NDArray[Any]:
    """``scales`` in 16 bits where these hold them exactly, as those of most files."""
    for dtype in _NARROW:
        with np.errstate(over="ignore"):
            narrow = scales.astype(dtype)
        if np.array_equal(narrow.astype(np.float32), scales):
            return narrow
    return scales

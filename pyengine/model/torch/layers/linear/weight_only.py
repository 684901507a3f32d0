"""Linear layers whose weights alone are quantized, on a GPU: integers of 4 or 8 bits, MXFP4, and
8-bit floats where the checkpoint does not round rows.

Rows keep their type (``W4A16``, ``W8A16``), and the numbers that are multiplied are those of a
dense layer of the same file. What one layer mixes (queries in 4 bits, values in 6) stays mixed: a
product each.
"""

from collections.abc import Sequence
from typing import Any, Protocol

from numpy.typing import NDArray

from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers.packed_weights import Share


class Device(Protocol):
    """The part of :class:`pyengine.model.torch.layers.parts.TorchParts` that layers need."""

    group: Group
    ops: TorchOps
    transfer: Transfer


class WeightOnlyLinear:
    """x W^T + b."""

    def __init__(
        self, parts: Device, weight: Sequence[Share], bias: NDArray[Any] | None, *, reduce: bool
    ) -> None:
        """A layer of weights that are on the device, or on their way there.

        Args:
            parts: The parts of the device.
            weight: The weight of this rank, one layer: [out, in].
            bias: [out].
            reduce: The results of all ranks are summed.
        """
        mine = None if reduce and parts.group.rank else bias
        self._shares = [
            (
                share.outputs,
                share.weight.layer(0),
                None if mine is None else parts.transfer.vector(mine[share.outputs]),
            )
            for share in weight
        ]
        self._parts = parts
        self._reduce = reduce

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, out]."""
        given, result = x.tensor[:rows], out.tensor[:rows]
        for outputs, weight, bias in self._shares:
            self._parts.ops.packed_product(given, weight, bias, result[:, outputs])
        if self._reduce:
            self._parts.group.all_reduce(result)

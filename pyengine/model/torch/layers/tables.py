"""Tables of rows on a device, such as embeddings, dense or as files have them."""

from collections.abc import Sequence

import torch

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.torch.device.ops import TorchOps
from pyengine.model.torch.layers.packed_weights import Share, stay_packed
from pyengine.model.weights.matrix import Matrix


def is_packed_table(weight: Matrix, device: torch.device, dtype: torch.dtype) -> bool:
    """Whether :class:`PackedTable` is for these weights, rows of ``dtype`` and this device."""
    return len(weight.parts) == 1 and stay_packed([weight], device, dtype)


class TorchTable:
    """Rows to look up."""

    def __init__(self, rows: torch.Tensor) -> None:
        self._rows = rows

    def __call__(self, index: torch.Tensor, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]``."""
        torch.index_select(self._rows, 0, index[:rows], out=out.tensor[:rows])


class PackedTable:
    """Rows to look up, which become the numbers of a dense table as they are."""

    def __init__(self, ops: TorchOps, weight: Sequence[Share]) -> None:
        """A table of the only share of ``weight``, which a head may multiply by too."""
        [share] = weight
        self._ops = ops
        self._weight = share.weight.layer(0)

    def __call__(self, index: torch.Tensor, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]``."""
        self._ops.packed_rows(self._weight, index[:rows], out.tensor[:rows])

"""The arrays of a plan: in one piece of pinned memory, which one copy brings to the device.

::

    host      query_start 0 | indptr 0 | last_page_len 0 | kv_length    (0: up to the next 16 bytes)
    device    └──────────────── send() ────────────────┘
"""

from typing import NamedTuple

import torch

from pyengine.model.torch.attention.flashinfer.memory import Memory
from pyengine.model.torch.attention.flashinfer.page_tables import PageTables

ALIGNED = 4
"""Numbers in 16 bytes, at multiples of which arrays begin."""


class TableTensors(NamedTuple):
    """Page tables as tensors, int32 each; see
    :class:`pyengine.model.torch.attention.flashinfer.page_tables.PageTables`.
    """

    query_start: torch.Tensor
    indptr: torch.Tensor
    last_page_len: torch.Tensor
    kv_length: torch.Tensor


class PlanArrays:
    """The arrays of one wrapper's plans. One thread at a time.

    Attributes:
        host: Those of the last plan, pinned.
        device: Where they are on the device, ``kv_length`` excepted, which only the host reads.
    """

    host: TableTensors
    device: TableTensors

    def __init__(self, memory: Memory, most_rows: int) -> None:
        """Of plans of up to ``most_rows`` rows."""
        room = len(TableTensors._fields) * _whole(most_rows + 1)
        self._copy = memory.library.copy
        self._host, self._device = memory.pinned(room), memory.ints(room)
        self._rows = 0
        self.lay_out(most_rows)

    def lay_out(self, rows: int) -> None:
        """Place the arrays of plans of ``rows`` rows."""
        if rows == self._rows:
            return
        step = _whole(rows + 1)
        ends = rows + 1, rows + 1, rows, rows
        parts = [slice(at * step, at * step + end) for at, end in enumerate(ends)]
        self.host, self.device = (
            TableTensors(*(whole[part] for part in parts)) for whole in (self._host, self._device)
        )
        numbers = self._host.numpy()
        self._views = [numbers[part] for part in parts]
        self._sent = slice(0, parts[2].stop)
        self._rows = rows

    def fill(self, tables: PageTables) -> None:
        """Write ``tables``; the device has read those before."""
        self.lay_out(len(tables.kv_length))
        query_start, indptr, last_page_len, kv_length = self._views
        query_start[:], indptr[:] = tables.query_start, tables.indptr
        last_page_len[:], kv_length[:] = tables.last_page_len, tables.kv_length

    def send(self) -> None:
        """Queue the copy to the device."""
        self._copy(self._device[self._sent], self._host[self._sent])


def _whole(count: int) -> int:
    return -(-count // ALIGNED) * ALIGNED

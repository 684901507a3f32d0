"""Page tables in pinned memory: a copy from other memory may wait for all that is queued."""

from typing import NamedTuple

import torch

from pyengine.model.torch.attention.flashinfer.memory import Memory
from pyengine.model.torch.attention.flashinfer.page_tables import PageTables


class TableTensors(NamedTuple):
    """Page tables as tensors, int32 each; see
    :class:`pyengine.model.torch.attention.flashinfer.page_tables.PageTables`.
    """

    query_start: torch.Tensor
    indptr: torch.Tensor
    kv_length: torch.Tensor
    last_page_len: torch.Tensor


class PinnedTables:
    """The tables of one wrapper's plans. One thread at a time."""

    def __init__(self, memory: Memory, most_rows: int) -> None:
        """Take the memory for plans of up to ``most_rows`` rows."""
        self._whole = TableTensors(
            *(memory.pinned(most_rows + 1) for _ in range(len(TableTensors._fields)))
        )

    def filled(self, tables: PageTables) -> TableTensors:
        """Write ``tables``, once the device has read those before."""
        arrays = tables.query_start, tables.indptr, tables.kv_length, tables.last_page_len
        parts = [whole[: len(array)] for whole, array in zip(self._whole, arrays, strict=True)]
        for part, array in zip(parts, arrays, strict=True):
            part.numpy()[:] = array
        return TableTensors(*parts)

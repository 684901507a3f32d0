"""A vocabulary that several ranks share: its table, and the head of a model."""

import torch

from pyengine.distributed.group import Group
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.architectures.parts import Linear, Parts, Table, logits_rows
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import rows_of_rank, share


class SharedTable:
    """Rows to look up, of which each rank has a share::

    index       5  0  3
    rank 0      ·  a  ·      rows 0 to 2
    rank 1      f  ·  d      rows 3 to 5
    sum         f  a  d      to the bit, for all others are zeros
    """

    def __init__(self, group: Group, table: Table, rows: int) -> None:
        """A lookup in this rank's share of ``rows``, which ``table`` has."""
        self._group = group
        self._table = table
        self._first = rows_of_rank(rows, group.rank, group.size).start
        each = share(rows, group.size)
        # Each row counts once: a rank's share may begin with rows of others.
        self._begin, self._end = group.rank * each, (group.rank + 1) * each

    def __call__(self, index: torch.Tensor, out: Buffer, rows: int) -> None:
        """``out[i]`` becomes row ``index[i]``, on all ranks."""
        wanted, found = index[:rows], out.tensor[:rows]
        elsewhere = (wanted < self._begin) | (wanted >= self._end)
        self._table((wanted - self._first).masked_fill_(elsewhere, 0), out, rows)
        found.masked_fill_(elsewhere[:, None], 0.0)
        self._group.all_reduce(found)


class GatheredHead:
    """Logits of which each rank computes a share::

    rank 0 [rows, share] ─┐
    rank 1 [rows, share] ─┴─► [ranks, rows, share] ─► [rows, vocabulary]
    """

    def __init__(self, parts: Parts, group: Group, linear: Linear, info: ModelInfo) -> None:
        """A head whose logits on this rank are computed by ``linear``."""
        self._group = group
        self._linear = linear
        self._columns = [
            rows_of_rank(info.vocab_size, rank, group.size) for rank in range(group.size)
        ]
        self._share = share(info.vocab_size, group.size)
        rows = logits_rows(parts, info)
        self._mine = parts.buffer(rows, self._share)
        self._all = parts.buffer(group.size * rows, self._share).tensor

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, vocabulary], the same on all ranks."""
        self._linear(x, self._mine, rows)
        gathered = self._all[: self._group.size * rows]
        self._group.all_gather(self._mine.tensor[:rows], gathered)
        shares = gathered.view(-1, rows, self._share)
        for columns, logits in zip(self._columns, shares, strict=True):
            out.tensor[:rows, columns] = logits

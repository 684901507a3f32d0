"""The head of a model whose vocabulary several ranks share."""

from pyengine.distributed.group import Group
from pyengine.model.architectures.parts import Buffer, Linear, Parts, logits_rows
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import share


class GatheredHead:
    """Logits of which each rank computes a share::

    rank 0 [rows, share] ─┐
    rank 1 [rows, share] ─┴─► [ranks, rows, share] ─► [rows, vocabulary]
    """

    def __init__(self, parts: Parts, group: Group, linear: Linear, info: ModelInfo) -> None:
        """Of the logits that ``linear`` computes on this rank."""
        self._group = group
        self._linear = linear
        self._share = share(info.vocab_size, group.size)
        rows = logits_rows(parts, info)
        self._mine = parts.buffer(rows, self._share)
        self._all = parts.buffer(group.size * rows, self._share).tensor

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, vocabulary], the same on all ranks."""
        self._linear(x, self._mine, rows)
        gathered = self._all[: self._group.size * rows]
        self._group.all_gather(self._mine.tensor[:rows], gathered)
        for rank, shared in enumerate(gathered.view(-1, rows, self._share)):
            columns = out.tensor[:rows, rank * self._share : (rank + 1) * self._share]
            columns.copy_(shared[:, : columns.shape[1]])

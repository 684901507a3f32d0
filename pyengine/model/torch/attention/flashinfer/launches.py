"""What is launched in a layer: of a graph one kernel for all rows, else one for each segment."""

import torch

from pyengine.model.torch.attention.flashinfer.memory import Memory, Scores
from pyengine.model.torch.attention.flashinfer.page_tables import page_tables
from pyengine.model.torch.attention.flashinfer.segments import segments
from pyengine.model.torch.attention.flashinfer.wrappers import Cache, Decode, Prefill
from pyengine.model.torch.device.device_step import DeviceStep


class Graphed:
    """All rows of a graph by one kernel: which rows are of which kind differs from step to step.

    Where rows have any number of queries, one more has the tokens that pad the graph.
    """

    def __init__(
        self,
        memory: Memory,
        step: DeviceStep,
        rows: int,
        kind: int,
        scores: Scores,
        *,
        one_query: bool,
    ) -> None:
        self._wrapper: Decode | Prefill
        if one_query:
            self._wrapper = Decode(memory, kind, scores, graph=(step.page_indices, rows))
        else:
            self._wrapper = Prefill(memory, kind, scores, graph=(step.page_indices, rows + 1))
        self._one_query = one_query
        self._size, self._table = memory.spec.block_size, scores.table

    def plan(self, step: DeviceStep, rows: int, tokens: int) -> None:
        """See :class:`Launches`."""
        padded = None if self._one_query else tokens
        tables = page_tables(step.host, (0, rows), padded, self._size, self._table)
        self._wrapper.plan(tables, step.page_indices)

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """See :class:`Launches`."""
        self._wrapper.run(queries, cache, out)

    def finish(self) -> None:
        """See :class:`Launches`."""
        self._wrapper.finish()


class Segmented:
    """Steps without a graph: each segment's rows by the kernel that is good at them."""

    def __init__(self, memory: Memory, kind: int, scores: Scores) -> None:
        self._memory, self._kind, self._scores = memory, kind, scores
        self._wrappers: dict[tuple[str, int], Decode | Prefill] = {}
        self._planned: list[tuple[Decode | Prefill, slice]] = []

    def plan(self, step: DeviceStep, rows: int, tokens: int) -> None:
        """See :class:`Launches`."""
        self._planned = []
        for place, segment in enumerate(segments(step.host, rows)):
            tables = page_tables(
                step.host, segment.rows, None, self._memory.spec.block_size, self._scores.table
            )
            wrapper = self._wrapper(segment.kind, place)
            wrapper.plan(tables, step.page_indices)
            self._planned.append((wrapper, slice(*segment.tokens)))

    def _wrapper(self, kind: str, place: int) -> Decode | Prefill:
        wrapper = self._wrappers.get((kind, place))
        if wrapper is None:
            memory, layers, scores = self._memory, self._kind, self._scores
            if kind == "decode":
                wrapper = Decode(memory, layers, scores, place)
            else:
                backend = "auto" if kind == "prompt" else "fa2"
                wrapper = Prefill(memory, layers, scores, place, backend=backend)
            self._wrappers[kind, place] = wrapper
        return wrapper

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """See :class:`Launches`."""
        for wrapper, tokens in self._planned:
            wrapper.run(queries[tokens], cache, out[tokens])

    def finish(self) -> None:
        """See :class:`Launches`."""
        for wrapper in self._wrappers.values():
            wrapper.finish()

"""FlashInfer's two wrappers: rows of one query, and rows of any number of them.

A graph keeps the addresses that its kernels read, so it has a wrapper with buffers of its own.
Page indices are not copied at all: the wrappers read them where the step has them on the device,
and the buffer that a graph's wrapper would copy them to is that very memory.
"""

from typing import Any, NamedTuple, Protocol

import torch

from pyengine.model.torch.attention.flashinfer.arrays import PinnedTables, TableTensors
from pyengine.model.torch.attention.flashinfer.memory import Memory, Scores
from pyengine.model.torch.attention.flashinfer.page_tables import PageTables
from pyengine.model.torch.device.device_step import DeviceStep


class Cache(NamedTuple):
    """Keys and values of a layer.

    Attributes:
        keys: [pages, block_size, kv heads, head_dim].
        values: The same.
        key_scale: See :class:`pyengine.model.architectures.parts.LayerAttention`.
        value_scale: The same.
    """

    keys: torch.Tensor
    values: torch.Tensor
    key_scale: float = 1.0
    value_scale: float = 1.0

    def arguments(self) -> dict[str, Any]:
        """Of a run. Of scales of 1, by which FlashInfer would multiply, nothing is said."""
        scales = {"k_scale": self.key_scale, "v_scale": self.value_scale}
        given = {name: scale for name, scale in scales.items() if scale != 1.0}
        return {"paged_kv_cache": (self.keys, self.values), **given}


Graph = tuple[torch.Tensor, int]
"""Where page indices are on the device, and how many rows a graph has."""


class Launches(Protocol):
    """What is launched in a layer: for one size of a graph, or for all steps that have none."""

    def plan(self, step: DeviceStep, rows: int, tokens: int) -> None:
        """Divide the work of ``step``: O(rows) in numpy, and one wait for the device at most."""

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """Attend, in one layer: [tokens, heads, head_dim] over its keys and values."""

    def finish(self) -> None:
        """Wait until the device has copied the last plan, and reads its host memory no more.

        FlashInfer copies from pinned memory in ways that torch, whose memory it is, does not see.
        """


class Wrapper:
    """One of FlashInfer's wrappers, its host memory and its place on the device."""

    def __init__(
        self,
        memory: Memory,
        wrapper: Any,
        kind: int,
        place: int,
        scores: Scores,
        most_rows: int,
    ) -> None:
        """Wrap FlashInfer's ``wrapper`` for plans of up to ``most_rows`` rows."""
        wrapper.reset_workspace_buffer(
            float_workspace_buffer=memory.workspace,
            int_workspace_buffer=memory.plan_memory(kind, place),
        )
        self._wrapper, self._memory, self._scores = wrapper, memory, scores
        self._tables = PinnedTables(memory, most_rows)
        # Behind the last plan's copies, from the wrapper's own pinned memory too.
        self._taken = memory.library.event()

    def layout(self) -> dict[str, Any]:
        """The arguments of every plan."""
        return self._memory.arguments(self._scores)

    def plan(self, tables: PageTables, indices: torch.Tensor) -> None:
        """Plan for rows whose pages are in ``indices``, int32 on the device."""
        self._taken.synchronize()
        self._plan_whole(self._tables.filled(tables), indices[: tables.indptr[-1]])
        self._taken.record()

    def _plan_whole(self, tables: TableTensors, indices: torch.Tensor) -> None:
        """Plan by the wrapper itself."""
        raise NotImplementedError

    def finish(self) -> None:
        """See :class:`Launches`."""
        self._taken.synchronize()


class Decode(Wrapper):
    """One query a row."""

    def __init__(
        self,
        memory: Memory,
        kind: int,
        scores: Scores,
        place: int = 0,
        graph: Graph | None = None,
    ) -> None:
        """For layers of a kind.

        Args:
            memory: The memory of all wrappers.
            kind: Number of the kind of layers.
            scores: The kind.
            place: See :meth:`Memory.plan_memory`.
            graph: The sizes of the graph that the wrapper belongs to, if any.
        """
        spec, buffers = memory.spec, {}
        most_rows = spec.max_rows if graph is None else graph[1]
        if graph is not None:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": memory.ints(most_rows + 1),
                "paged_kv_indices_buffer": graph[0],
                "paged_kv_last_page_len_buffer": memory.ints(most_rows),
            }
        group = spec.num_heads // spec.num_kv_heads
        wrapper = memory.library.decode(
            float_workspace_buffer=memory.workspace,
            kv_layout="NHD",
            # Its kernel without tensor cores has few groups, and these it shares a key's loads
            # among.
            use_tensor_cores=group >= 4 or spec.dtype != spec.kv_dtype,
            # ``auto`` is FlashAttention 3 for some caches, and cuDNN for some steps.
            backend="fa2",
            **buffers,
        )
        super().__init__(memory, wrapper, kind, place, scores, most_rows)

    def _plan_whole(self, tables: TableTensors, indices: torch.Tensor) -> None:
        self._wrapper.plan(
            indptr=tables.indptr,
            indices=indices,
            last_page_len=tables.last_page_len,
            seq_lens=tables.kv_length,
            head_dim=self._memory.spec.head_dim,
            **self.layout(),
        )

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """[rows, heads, head_dim]."""
        self._wrapper.run(q=queries, out=out, **cache.arguments())


class Prefill(Wrapper):
    """Any number of queries a row.

    Attributes:
        queries: Query tokens of the plan.
    """

    def __init__(
        self,
        memory: Memory,
        kind: int,
        scores: Scores,
        place: int = 0,
        graph: Graph | None = None,
        backend: str = "fa2",
    ) -> None:
        """For layers of a kind.

        Args:
            memory: The memory of all wrappers.
            kind: Number of the kind of layers.
            scores: The kind.
            place: See :meth:`Memory.plan_memory`.
            graph: The sizes of the graph that the wrapper belongs to, if any.
            backend: ``fa2``; or ``auto``, which on Hopper is ``fa3`` where it can.
        """
        buffers = {}
        most_rows = memory.spec.max_rows if graph is None else graph[1]
        if graph is not None:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": memory.ints(most_rows + 1),
                "paged_kv_indptr_buf": memory.ints(most_rows + 1),
                "paged_kv_indices_buf": graph[0],
                "paged_kv_last_page_len_buf": memory.ints(most_rows),
            }
        wrapper = memory.library.prefill(
            float_workspace_buffer=memory.workspace, kv_layout="NHD", backend=backend, **buffers
        )
        super().__init__(memory, wrapper, kind, place, scores, most_rows)
        self.queries = 0

    def plan(self, tables: PageTables, indices: torch.Tensor) -> None:
        """See :class:`Wrapper`."""
        self.queries = int(tables.query_start[-1])
        super().plan(tables, indices)

    def _plan_whole(self, tables: TableTensors, indices: torch.Tensor) -> None:
        self._wrapper.plan(
            qo_indptr=tables.query_start,
            paged_kv_indptr=tables.indptr,
            paged_kv_indices=indices,
            paged_kv_last_page_len=tables.last_page_len,
            seq_lens=tables.kv_length,
            max_token_per_sequence=self.queries,
            head_dim_qk=self._memory.spec.head_dim,
            causal=True,
            **self.layout(),
        )

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """The plan's first tokens of [tokens, heads, head_dim]."""
        count = self.queries
        self._wrapper.run(q=queries[:count], out=out[:count], **cache.arguments())

"""FlashInfer's wrappers as version 0.6.14 has them, over a device that works when it is waited for.

The parameters of the real ones, as far as they are used, are written down here as facts; a test on
a GPU holds the same calls against the installed library. What a plan is given is read when the
device comes to it, as an asynchronous copy from pinned memory does; and so is what it writes into
pinned memory of the wrapper's own.
"""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import torch

from pyengine.kernels.attention import Pages
from pyengine.kernels.attention_reference import attention_reference
from pyengine.model.torch.attention.flashinfer_wrappers import Library


class Device:
    """Work in order, done as late as may be."""

    def __init__(self) -> None:
        self.queue: list[Callable[[], object]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []

    def add(self, work: Callable[[], object]) -> None:
        self.queue.append(work)

    def finish(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def library(self) -> Library:
        def bind(wrapper: type) -> Callable[..., Any]:
            return lambda **given: wrapper(self, **given)

        return Library(
            bind(BatchDecode), bind(BatchPrefill), bind(MultiLevelCascade), lambda: Mark(self)
        )


class Mark:
    def __init__(self, device: Device) -> None:
        self._device = device
        self._pending = 0

    def record(self) -> None:
        self._pending += 1
        self._device.add(self._reach)

    def _reach(self) -> None:
        self._pending -= 1

    def synchronize(self) -> None:
        while self._pending:
            self._device.queue.pop(0)()


class _Wrapper:
    """The copies that plans queue. Buffers of a graph have addresses that stay."""

    name = ""

    def __init__(self, device: Device, **buffers: torch.Tensor | None) -> None:
        self._device = device
        self._buffers = {key: each for key, each in buffers.items() if each is not None}
        self._pinned = torch.zeros(1, dtype=torch.int64)
        self._stamp = torch.zeros(1, dtype=torch.int64)
        self.workspaces: Any = None
        device.calls.append((f"{self.name}.init", {"captured": bool(self._buffers)}))

    def _copy(self, name: str, given: torch.Tensor, on_device: bool) -> None:
        assert given.dtype == torch.int32
        if name in self._buffers:
            buffer = self._buffers[name]
            assert len(given) <= len(buffer)
            if on_device:  # or the real one copies, and waits
                assert given.data_ptr() == buffer.data_ptr()
                return
            assert len(given) == len(buffer)
            self._device.add(lambda: buffer.copy_(given))
            self._tables[name] = buffer
        elif on_device:
            self._tables[name] = given
        else:
            target = torch.zeros_like(given)
            self._device.add(lambda: target.copy_(given))
            self._tables[name] = target

    def _plan(self, host: dict[str, torch.Tensor], indices: torch.Tensor, **given: Any) -> None:
        self._tables: dict[str, torch.Tensor] = {}
        for name, each in host.items():
            self._copy(name, each, on_device=False)
        self._copy("indices", indices, on_device=True)
        self._tables.setdefault("indices", self._buffers.get("indices", indices))
        # The wrapper's own pinned memory: a number that the device has to find unchanged.
        stamp = int(self._pinned) + 1
        self._pinned.fill_(stamp)
        self._device.add(lambda: self._stamp.copy_(self._pinned))
        self._planned = stamp
        self.given = given
        self._device.calls.append((f"{self.name}.plan", given))

    def _queue(self, work: Callable[[dict[str, torch.Tensor]], None]) -> None:
        planned, tables = self._planned, self._tables

        def do() -> None:
            # What a graph has is done again, behind plans that come after its capture.
            again = bool(self._buffers) and int(self._stamp) > planned
            assert again or int(self._stamp) == planned, "the plan of another step"
            work(tables)

        self._device.add(do)
        self._device.calls.append((f"{self.name}.run", {}))


def _attend(
    queries: torch.Tensor,
    cache: tuple[torch.Tensor, torch.Tensor],
    tables: dict[str, torch.Tensor],
    query_start: torch.Tensor,
    out: torch.Tensor,
    given: dict[str, Any],
) -> None:
    size, indptr = cache[0].shape[1], tables["indptr"]
    pages = indptr.diff()
    lengths = torch.where(pages > 0, (pages - 1) * size + tables["last_page_len"], 0)
    rows = len(lengths)
    # FlashInfer gives zeros where a query has no keys.
    counts = torch.where(lengths > 0, query_start.diff(), 0)
    out.zero_()
    for row in range(rows):
        if counts[row] == 0:
            continue
        begin, end = int(query_start[row]), int(query_start[row + 1])
        attention_reference(
            queries[begin:end], *cache,
            Pages(
                torch.tensor([0, end - begin]), lengths[row : row + 1],
                indptr[row : row + 2], tables["indices"],
            ),
            out[begin:end], rows=1, one_query=False, scale=given["sm_scale"],
            window=None if given["window_left"] < 0 else given["window_left"] + 1,
            soft_cap=given["logits_soft_cap"],
        )  # fmt: skip


class BatchDecode(_Wrapper):
    name = "decode"

    def __init__(
        self,
        device: Device,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: torch.Tensor | None = None,
        paged_kv_indices_buffer: torch.Tensor | None = None,
        paged_kv_last_page_len_buffer: torch.Tensor | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        assert not float_workspace_buffer.any()
        super().__init__(
            device, indptr=paged_kv_indptr_buffer, indices=paged_kv_indices_buffer,
            last_page_len=paged_kv_last_page_len_buffer,
        )  # fmt: skip
        assert use_cuda_graph == bool(self._buffers)
        self.use_tensor_cores = use_tensor_cores

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        self.workspaces = int_workspace_buffer

    def plan(
        self,
        indptr: torch.Tensor,
        indices: torch.Tensor,
        last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        o_data_type: torch.dtype,
        sm_scale: float,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        non_blocking: bool = True,
        seq_lens: torch.Tensor | None = None,
    ) -> None:
        assert seq_lens is not None
        assert len(seq_lens) == len(last_page_len) == len(indptr) - 1
        assert (last_page_len >= 1).all()
        assert (last_page_len <= page_size).all()
        assert (seq_lens == (indptr.diff() - 1) * page_size + last_page_len).all()
        self._plan(
            {"indptr": indptr, "last_page_len": last_page_len}, indices,
            q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=o_data_type,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
        )  # fmt: skip

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> torch.Tensor:
        rows = len(self._tables["last_page_len"])
        assert len(q) == rows
        assert out.shape == q.shape

        def work(tables: dict[str, torch.Tensor]) -> None:
            _attend(q, paged_kv_cache, tables, torch.arange(rows + 1), out, given)

        given = self.given
        self._queue(work)
        return out


class BatchPrefill(_Wrapper):
    name = "prefill"

    def __init__(
        self,
        device: Device,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf: torch.Tensor | None = None,
        paged_kv_indptr_buf: torch.Tensor | None = None,
        paged_kv_indices_buf: torch.Tensor | None = None,
        paged_kv_last_page_len_buf: torch.Tensor | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        super().__init__(
            device, query_start=qo_indptr_buf, indptr=paged_kv_indptr_buf,
            indices=paged_kv_indices_buf, last_page_len=paged_kv_last_page_len_buf,
        )  # fmt: skip
        assert use_cuda_graph == bool(self._buffers)
        self._most = 0

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        self.workspaces = int_workspace_buffer

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        causal: bool = False,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        o_data_type: torch.dtype | None = None,
        non_blocking: bool = True,
        seq_lens: torch.Tensor | None = None,
        max_token_per_sequence: int | None = None,
    ) -> None:
        assert causal
        assert seq_lens is not None
        pages = paged_kv_indptr.diff()
        length = (pages - 1).clamp(min=0) * page_size + paged_kv_last_page_len
        assert (seq_lens == length).all()
        self._queries = int(qo_indptr[-1])
        if self._buffers:
            self._most = self._most or self._queries
            assert self._queries <= self._most
        self._plan(
            {
                "query_start": qo_indptr,
                "indptr": paged_kv_indptr,
                "last_page_len": paged_kv_last_page_len,
            },
            paged_kv_indices, q_data_type=q_data_type, kv_data_type=kv_data_type,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
        )  # fmt: skip

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
    ) -> torch.Tensor:
        assert len(q) == self._queries == len(out)
        given = self.given
        self._queue(
            lambda tables: _attend(q, paged_kv_cache, tables, tables["query_start"], out, given)
        )
        return out


class MultiLevelCascade:
    """Two levels of the fake of prefill; what they attend to is put together before it is."""

    def __init__(
        self,
        device: Device,
        num_levels: int,
        float_workspace_buffer: torch.Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        qo_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indptr_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_indices_buf_arr: list[torch.Tensor] | None = None,
        paged_kv_last_page_len_buf_arr: list[torch.Tensor] | None = None,
    ) -> None:
        assert num_levels == 2
        none = [None, None]
        arrays = (
            qo_indptr_buf_arr or none, paged_kv_indptr_buf_arr or none,
            paged_kv_indices_buf_arr or none, paged_kv_last_page_len_buf_arr or none,
        )  # fmt: skip
        self._device = device
        self._levels = [
            BatchPrefill(device, float_workspace_buffer, kv_layout, use_cuda_graph, *each)
            for each in zip(*arrays, strict=True)
        ]

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffers: list[torch.Tensor]
    ) -> None:
        first, second = int_workspace_buffers
        assert first.data_ptr() != second.data_ptr()  # both are planned before either runs

    def plan(
        self,
        qo_indptr_arr: list[torch.Tensor],
        paged_kv_indptr_arr: list[torch.Tensor],
        paged_kv_indices_arr: list[torch.Tensor],
        paged_kv_last_page_len: list[torch.Tensor],
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        causal: bool,
        sm_scale: float,
        q_data_type: torch.dtype,
        kv_data_type: torch.dtype,
        window_left: int,
        logits_soft_cap: float | None,
    ) -> None:
        assert causal
        assert window_left == -1  # what rows share is seen by all queries
        given = (qo_indptr_arr, paged_kv_indptr_arr, paged_kv_indices_arr, paged_kv_last_page_len)
        for level, each in zip(self._levels, zip(*given, strict=True), strict=True):
            size = (each[1].diff() - 1).clamp(min=0) * page_size + each[3]
            level.plan(
                *each, num_qo_heads, num_kv_heads, head_dim, page_size, sm_scale,
                q_data_type, kv_data_type, causal=True, seq_lens=size,
                logits_soft_cap=logits_soft_cap,
            )  # fmt: skip

    def run(
        self, q: torch.Tensor, paged_kv_cache: tuple[torch.Tensor, torch.Tensor]
    ) -> torch.Tensor:
        out = torch.zeros(q.shape, dtype=q.dtype)
        prefix, own = self._levels
        keep = prefix._tables
        prefix._queue(lambda tables: None)

        def work(tables: dict[str, torch.Tensor]) -> None:
            assert keep["query_start"].tolist() == [0, len(q)]
            shared = keep["indices"][: int(keep["indptr"][1])]
            ends = tables["indptr"].tolist()
            rows = [
                torch.cat([shared, tables["indices"][first:last]]) for first, last in pairwise(ends)
            ]
            lasts = tables["last_page_len"]
            size = paged_kv_cache[0].shape[1]
            joined = {
                "indptr": torch.tensor([0, *[len(row) for row in rows]]).cumsum(0),
                "indices": torch.cat(rows),
                "last_page_len": torch.where(tables["indptr"].diff() > 0, lasts, size),
            }
            # Rows that have nothing of their own only pad the step.
            _attend(q, paged_kv_cache, joined, tables["query_start"], out, own.given)

        own._queue(work)
        self._device.finish()  # what is done with the result is not queued here
        return out

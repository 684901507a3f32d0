"""FlashInfer's wrappers as version 0.7.2 has them, over a device that works when it is waited for.

The parameters of the real ones, as far as they are used, are written down here as facts; every call
is noted, and a test on a GPU binds what is noted to the installed library's. So are the attributes
that ``run`` reads, and what the compiled module's ``plan`` is called with. The kernels that
``auto`` picks are a GPU's of Hopper, or of another one, and refuse the types that these do not
take. What a plan is given is read when the device comes to it, as an asynchronous copy from pinned
memory does; and so is what the module writes into pinned memory of the wrapper's own.
"""

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

from pyengine.kernels.attention.paged import Pages
from pyengine.model.torch.attention.flashinfer.library import Library
from tests.attention_reference import attention_reference


class Device:
    """Work in order, done as late as may be."""

    def __init__(self, *, hopper: bool = True) -> None:
        self.hopper = hopper
        # What was compiled or fetched: the wrapper's kind, its kernels, types, and whether they
        # have windows and soft caps.
        self.modules: set[tuple[object, ...]] = set()
        self.queue: list[Callable[[], object]] = []
        self.calls: list[tuple[str, dict[str, Any]]] = []
        # The library's class, the method, and the names of what it was called with.
        self.bound: set[tuple[str, str, tuple[str, ...]]] = set()

    def add(self, work: Callable[[], object]) -> None:
        self.queue.append(work)

    def on_host(self) -> AbstractContextManager[None]:
        """Around what the library does on the host."""
        return nullcontext()

    def finish(self) -> None:
        while self.queue:
            self.queue.pop(0)()

    def library(self) -> Library:
        def bind(wrapper: type[_Wrapper]) -> Callable[..., Any]:
            def make(**given: Any) -> Any:
                self.note(wrapper, "__init__", given)
                with self.on_host():
                    made: Any = wrapper(self, **given)
                for name in ("reset_workspace_buffer", "plan", "run"):
                    setattr(made, name, self._noting(wrapper, name, getattr(made, name)))
                return made

            return make

        return Library(bind(BatchDecode), bind(BatchPrefill), lambda: Mark(self))

    def note(self, wrapper: "type[_Wrapper]", method: str, given: dict[str, Any]) -> None:
        self.bound.add((wrapper.real, method, tuple(given)))

    def _noting(
        self, wrapper: "type[_Wrapper]", name: str, method: Callable[..., Any]
    ) -> Callable[..., Any]:
        def noted(**given: Any) -> Any:
            self.note(wrapper, name, given)
            with self.on_host():
                return method(**given)

        return noted


FLOAT8 = torch.float8_e4m3fn


def backend_of(
    asked: str, hopper: bool, q_dtype: torch.dtype, kv_dtype: torch.dtype, soft_cap: bool
) -> str:
    """As ``determine_attention_backend``, and what its modules are compiled for."""
    backend = asked
    if asked == "auto":
        backend = "fa3" if hopper and (kv_dtype != FLOAT8 or q_dtype == FLOAT8) else "fa2"
    if backend == "fa2":
        assert q_dtype != FLOAT8, "fp8 tensor core is not supported in fa2 backend"
    else:
        assert hopper
        assert q_dtype == kv_dtype, "only the same quantization precision"
        assert q_dtype != FLOAT8 or not soft_cap, "it would be ignored"
    return backend


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


def tile_of(packed: int, dim: int) -> int:
    """As ``FA2DetermineCtaTileQ``."""
    return 128 if packed > 64 and dim < 256 else 64 if packed > 16 else 16


class Info(list[int]):
    """Where a plan lies in its workspace.

    Attributes:
        stamp: Which of the wrapper's plans it is.
        longest: Queries of the longest row.
        tile: Query heads of query tokens of a tile, of FlashAttention 2's kernels.
    """

    stamp: int
    longest: int
    tile: int


class Module:
    """Kernels compiled for a wrapper, and their planner: its arguments by position, as 0.7.2's."""

    def __init__(self, device: Device, name: str, *, tensor_cores: bool, backend: str) -> None:
        self._device, self._name = device, name
        self._tensor_cores, self._backend = tensor_cores, backend
        self._last: object = None

    def plan(self, *given: Any) -> Info:
        with self._device.on_host():
            return self._plan(*given)

    def _plan(self, *given: Any) -> Info:
        workspace, places, pinned, *rest = given
        assert workspace.dtype == places.dtype == pinned.dtype == torch.uint8
        assert len(pinned) == len(places)
        wanted: list[Any]
        arrays, numbers = (rest[:3], rest[3:]) if self._tensor_cores else (rest[:1], rest[1:])
        assert all(each.dtype == torch.int32 for each in arrays)
        if self._tensor_cores:
            wanted = [*[int] * 5, bool, int, int, bool, int]
            wanted += [int, bool, int, int] if self._backend == "fa2" else []
            query_start, indptr, kv_length = arrays
            tokens, rows, _, _, page_size, graph = numbers[:6]
            assert len(query_start) == len(indptr) == rows + 1 == len(kv_length) + 1
            pages = -(-kv_length.long() // page_size)
            assert torch.equal(pages, indptr.diff().long())
            assert query_start[-1] <= tokens if graph else query_start[-1] == tokens
        else:
            wanted = [*[int] * 4, bool, int, float, int, int, torch.Tensor, torch.Tensor]
            assert len(arrays[0]) == numbers[0] + 1
        if [type(number) for number in numbers] != wanted:
            raise TypeError(f"plan takes {wanted}")
        plain = [each.dtype if isinstance(each, torch.Tensor) else each for each in numbers]
        content = [each.tolist() for each in arrays], plain
        stamp = pinned[:8].view(torch.int64)
        if content != self._last:  # what is the same is no other plan
            self._last = content
            stamp += 1 if int(stamp) else (id(pinned) % 2**31 << 32) + 1
        self._device.add(lambda: places[:8].copy_(pinned[:8]))
        info = Info([hash(str(content))])
        info.stamp = int(stamp)
        info.longest, info.tile = 1, 16
        if self._tensor_cores:
            info.longest = int(arrays[0].diff().max())
            tokens, rows, heads, kv_heads, _, graph, dim = numbers[:7]
            group = heads // kv_heads
            # A graph's is for the longest row that it may have; in C++ without a sign.
            longest = (tokens - rows + 1) % 2**32 if graph else int(arrays[0][-1]) // rows
            info.tile = tile_of(longest * group, dim)
        return info


class _Wrapper:
    """The copies that plans queue. Buffers of a graph have addresses that stay."""

    name = real = ""
    use_tensor_cores = True
    _cached_module: Module
    _plan_info: Info

    def __init__(
        self,
        device: Device,
        workspace: torch.Tensor,
        query_start: torch.Tensor | None,
        indptr: torch.Tensor | None,
        indices: torch.Tensor | None,
        last_page_len: torch.Tensor | None,
    ) -> None:
        self._device = device
        self._float_workspace_buffer = workspace
        self.is_cuda_graph_enabled = indptr is not None
        self._qo_indptr_buf, self._paged_kv_indptr_buf = query_start, indptr
        self._paged_kv_indices_buf, self._paged_kv_last_page_len_buf = indices, last_page_len
        self._max_total_num_rows: int | None = None
        self._qo_indptr_last = 0
        device.calls.append((f"{self.name}.init", {"captured": self.is_cuda_graph_enabled}))

    def reset_workspace_buffer(
        self, float_workspace_buffer: torch.Tensor, int_workspace_buffer: torch.Tensor
    ) -> None:
        self._float_workspace_buffer = float_workspace_buffer
        self._int_workspace_buffer = int_workspace_buffer
        self._pin_memory_int_workspace_buffer = torch.zeros_like(int_workspace_buffer)

    def _copied(
        self, buffer: torch.Tensor | None, given: torch.Tensor, *, on_device: bool = False
    ) -> torch.Tensor:
        """``given`` on the device: in the graph's buffer, if there is one."""
        assert given.dtype == torch.int32
        if on_device:
            if not self.is_cuda_graph_enabled:
                return given
            assert buffer is not None
            assert len(given) <= len(buffer)
            assert given.data_ptr() == buffer.data_ptr()  # or the real one copies, and waits
            return buffer
        if not self.is_cuda_graph_enabled:
            target = torch.zeros_like(given)
        else:
            assert buffer is not None
            target = buffer
        assert len(given) == len(target)
        self._device.add(lambda: target.copy_(given))
        return target

    def _plan(
        self,
        module: Module,
        host: tuple[torch.Tensor | None, torch.Tensor, torch.Tensor],
        indices: torch.Tensor,
        arguments: tuple[Any, ...],
        **given: Any,
    ) -> None:
        query_start, indptr, last_page_len = host
        if query_start is not None:
            self._qo_indptr_buf = self._copied(self._qo_indptr_buf, query_start)
        self._paged_kv_indptr_buf = self._copied(self._paged_kv_indptr_buf, indptr)
        self._paged_kv_last_page_len_buf = self._copied(
            self._paged_kv_last_page_len_buf, last_page_len
        )
        self._paged_kv_indices_buf = self._copied(
            self._paged_kv_indices_buf, indices, on_device=True
        )
        self._cached_module = module
        self._plan_info = module.plan(
            self._float_workspace_buffer,
            self._int_workspace_buffer,
            self._pin_memory_int_workspace_buffer,
            *arguments,
        )
        self.given = given
        kernels = "prefill" if self.use_tensor_cores else "decode", given["backend"]
        types = tuple(given[f"{name}_data_type"] for name in ("q", "kv", "o"))
        scores = given["window_left"] >= 0, bool(given["logits_soft_cap"])
        self._device.modules.add((*kernels, *types, *scores))
        self._device.calls.append((f"{self.name}.plan", given))

    def _queue(self, work: Callable[[dict[str, torch.Tensor]], None]) -> None:
        """Queue ``work``, which finds the tables that the wrapper has now."""
        planned, places = self._plan_info.stamp, self._int_workspace_buffer[:8].view(torch.int64)
        graph, tables = self.is_cuda_graph_enabled, {
            "indptr": self._paged_kv_indptr_buf, "indices": self._paged_kv_indices_buf,
            "last_page_len": self._paged_kv_last_page_len_buf,
        }  # fmt: skip
        if self._qo_indptr_buf is not None:
            tables["query_start"] = self._qo_indptr_buf
        assert all(each is not None for each in tables.values())

        def do() -> None:
            # What a graph has is done again, behind plans that come after its capture.
            found = int(places)
            again = graph and found >> 32 == planned >> 32 and found > planned
            assert again or found == planned, "the plan of another step"
            work(tables)  # type: ignore[arg-type]

        self._device.add(do)
        given = self.given | {"longest": self._plan_info.longest, "tile": self._plan_info.tile}
        self._device.calls.append((f"{self.name}.run", given))


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
        of_row = indptr[row : row + 2], tables["indices"]
        assert given["causal"]
        attention_reference(
            queries[begin:end], *cache,
            Pages(torch.tensor([0, end - begin]), lengths[row : row + 1], *of_row),
            out[begin:end], rows=1, one_query=False, scale=given["sm_scale"],
            window=None if given["window_left"] < 0 else given["window_left"] + 1,
            soft_cap=given["logits_soft_cap"],
        )  # fmt: skip


class BatchDecode(_Wrapper):
    name, real = "decode", "BatchDecodeWithPagedKVCacheWrapper"

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
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "NHD"
        assert backend == "fa2"  # or cuDNN may get steps
        assert not float_workspace_buffer.any()
        super().__init__(
            device, float_workspace_buffer, None, paged_kv_indptr_buffer, paged_kv_indices_buffer,
            paged_kv_last_page_len_buffer,
        )  # fmt: skip
        assert use_cuda_graph == self.is_cuda_graph_enabled
        self.use_tensor_cores, self._backend = use_tensor_cores, backend

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
        rows, soft_cap = len(last_page_len), logits_soft_cap or 0.0
        heads = num_qo_heads, num_kv_heads, page_size, self.is_cuda_graph_enabled
        arguments: tuple[Any, ...]
        if self.use_tensor_cores:
            arguments = (
                torch.arange(rows + 1, dtype=torch.int32), indptr, seq_lens, rows, rows, *heads,
                head_dim, head_dim, False, window_left, -1, False, 0, 0,
            )  # fmt: skip
        else:
            kinds = (torch.empty(0, dtype=each) for each in (q_data_type, kv_data_type))
            arguments = (indptr, rows, *heads, window_left, soft_cap, head_dim, head_dim, *kinds)
        module = Module(self._device, self.name, tensor_cores=self.use_tensor_cores, backend="fa2")
        self._plan(
            module, (None, indptr, last_page_len), indices, arguments,
            q_data_type=q_data_type, kv_data_type=kv_data_type, o_data_type=o_data_type,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
            causal=True, backend="fa2",
        )  # fmt: skip

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> torch.Tensor:
        assert self._paged_kv_last_page_len_buf is not None
        rows = len(self._paged_kv_last_page_len_buf)
        assert len(q) == rows
        assert out.shape == q.shape

        def work(tables: dict[str, torch.Tensor]) -> None:
            _attend(q, paged_kv_cache, tables, torch.arange(rows + 1), out, given)
            out.mul_(v_scale or 1.0)

        given = self.given | {"sm_scale": self.given["sm_scale"] * (k_scale or 1.0)}
        self._queue(work)
        return out


class BatchPrefill(_Wrapper):
    name, real = "prefill", "BatchPrefillWithPagedKVCacheWrapper"

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
        backend: str = "auto",
    ) -> None:
        assert kv_layout == "NHD"
        super().__init__(
            device, float_workspace_buffer, qo_indptr_buf, paged_kv_indptr_buf,
            paged_kv_indices_buf, paged_kv_last_page_len_buf,
        )  # fmt: skip
        assert use_cuda_graph == self.is_cuda_graph_enabled
        self._backend = backend

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
        assert seq_lens is not None
        pages = paged_kv_indptr.diff()
        length = (pages - 1).clamp(min=0) * page_size + paged_kv_last_page_len
        assert (seq_lens == length).all()
        self._qo_indptr_last = int(qo_indptr[-1])
        if self.is_cuda_graph_enabled:
            self._max_total_num_rows = self._max_total_num_rows or self._qo_indptr_last
            assert self._qo_indptr_last <= self._max_total_num_rows
        self._backend = backend_of(
            self._backend, self._device.hopper, q_data_type, kv_data_type, bool(logits_soft_cap)
        )
        module = Module(self._device, self.name, tensor_cores=True, backend=self._backend)
        rows = len(seq_lens)
        arguments = (
            qo_indptr, paged_kv_indptr, seq_lens, self._max_total_num_rows or self._qo_indptr_last,
            rows, num_qo_heads, num_kv_heads, page_size, self.is_cuda_graph_enabled, head_dim_qk,
            head_dim_qk, causal, window_left,
        )  # fmt: skip
        self._plan(
            module, (qo_indptr, paged_kv_indptr, paged_kv_last_page_len), paged_kv_indices,
            arguments + ((-1, False, 0, 0) if self._backend == "fa2" else ()),
            q_data_type=q_data_type, kv_data_type=kv_data_type,
            sm_scale=sm_scale, window_left=window_left, logits_soft_cap=logits_soft_cap,
            causal=causal, o_data_type=o_data_type, backend=self._backend,
        )  # fmt: skip

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        out: torch.Tensor,
        q_scale: float | None = None,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> torch.Tensor:
        assert len(q) == self._qo_indptr_last
        assert q.dtype == self.given["q_data_type"]
        assert out.dtype == self.given["o_data_type"]
        assert len(out) == len(q)
        scale = self.given["sm_scale"] * (q_scale or 1.0) * (k_scale or 1.0)
        given = self.given | {"sm_scale": scale}

        def work(tables: dict[str, torch.Tensor]) -> None:
            _attend(q, paged_kv_cache, tables, tables["query_start"], out, given)
            out.mul_(v_scale or 1.0)

        self._queue(work)
        return out

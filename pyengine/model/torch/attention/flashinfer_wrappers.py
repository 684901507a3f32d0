"""FlashInfer's wrappers: what their plans copy, from where, and when its memory may be reused.

FlashInfer divides a step's work among the processors on the CPU, in ``plan``, and copies the
result to the device from pinned memory of its own: asynchronously, so a plan waits until the
device has taken what the one before by the same wrapper wrote. What it is given lies in pinned
memory too, since a copy from other memory may wait for all that is queued.

Page indices are not copied at all: the wrappers read them where the step has them on the device,
and the buffer that a graph's wrapper would copy them to is that very memory.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch

from pyengine.model.torch.attention.flashinfer_workspace import workspace_bytes
from pyengine.model.torch.attention.page_tables import Ints, PageTables, page_tables, without_prefix
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device_step import DeviceStep


class Event(Protocol):
    """A mark in the device's work, such as :class:`torch.cuda.Event`."""

    def record(self) -> None:
        """Mark what was queued so far."""

    def synchronize(self) -> None:
        """Wait until the device has done what was marked; at once where nothing was."""


@dataclass(frozen=True)
class Library:
    """The parts of flashinfer and of the device that are used.

    Attributes:
        decode: ``BatchDecodeWithPagedKVCacheWrapper``.
        prefill: ``BatchPrefillWithPagedKVCacheWrapper``.
        cascade: ``MultiLevelCascadeAttentionWrapper``.
        event: Makes a mark in the current stream's work.
    """

    decode: Callable[..., Any]
    prefill: Callable[..., Any]
    cascade: Callable[..., Any]
    event: Callable[[], Event]


def load_library() -> Library:
    """The installed one."""
    import flashinfer

    return Library(
        decode=flashinfer.BatchDecodeWithPagedKVCacheWrapper,
        prefill=flashinfer.BatchPrefillWithPagedKVCacheWrapper,
        cascade=flashinfer.MultiLevelCascadeAttentionWrapper,
        event=torch.cuda.Event,
    )


class Host:
    """Pinned arrays that a plan copies from, and the mark behind the last copy from them.

    The same mark tells that the wrapper's own pinned memory has been copied.
    """

    def __init__(self, event: Event, pin: bool) -> None:
        self._event = event
        self._pin = pin
        self._tensors: dict[str, torch.Tensor] = {}

    def wait(self) -> None:
        """Until the device has taken what was written last."""
        self._event.synchronize()

    def mark(self) -> None:
        """The copies of this plan are queued."""
        self._event.record()

    def take(self, name: str, values: Ints) -> torch.Tensor:
        """``values`` in pinned memory, int32 on the CPU."""
        tensor = self._tensors.get(name)
        if tensor is None or len(tensor) < len(values):
            room = 1 << len(values).bit_length()
            tensor = torch.zeros(room, dtype=torch.int32, pin_memory=self._pin)
            self._tensors[name] = tensor
        tensor.numpy()[: len(values)] = values
        return tensor[: len(values)]


class Memory:
    """The workspaces and the model's layout, which all wrappers share."""

    def __init__(self, spec: AttentionSpec, device: torch.device, library: Library) -> None:
        self.spec = spec
        self.device = device
        self.library = library
        self.q_dtype, self.kv_dtype = getattr(torch, spec.dtype), getattr(torch, spec.kv_dtype)
        cuda = device.type == "cuda"
        hopper = cuda and torch.cuda.get_device_capability(device)[0] == 9
        size = workspace_bytes(spec, hopper=hopper)
        self.workspace = torch.zeros(size, dtype=torch.uint8, device=device)
        # Seven numbers for each tile of 64 tokens or more and head, where the GPU is one of Hopper.
        tiles = spec.max_tokens // 64 + spec.max_rows + 2
        each = 2**20 + 32 * spec.num_heads * tiles
        # Doubled for each kind of layers beside the first, see plan_memory.
        plans = [torch.zeros(each, dtype=torch.uint8, device=device) for _ in range(2)]
        self._plans = [plans]
        self.own_indices = self.ints(spec.max_pages)
        self.memory_bytes = size + 2 * each + 4 * spec.max_pages

    def ints(self, count: int) -> torch.Tensor:
        """Zeros, int32 [count], on the device."""
        return torch.zeros(count, dtype=torch.int32, device=self.device)

    def host(self) -> Host:
        """Pinned memory for a wrapper's plans."""
        return Host(self.library.event(), pin=self.device.type == "cuda")

    def plan_memory(self, at: int) -> list[torch.Tensor]:
        """Where the plans of the wrappers number ``at`` lie on the device: a plan each for the
        layers of one kind, until the step is over.
        """
        while len(self._plans) <= at:
            self._plans.append([torch.zeros_like(each) for each in self._plans[0]])
        return self._plans[at]

    def arguments(self, scores: "Scores") -> dict[str, Any]:
        """The arguments of every plan for layers of a kind."""
        spec = self.spec
        return {
            "num_qo_heads": spec.num_heads,
            "num_kv_heads": spec.num_kv_heads,
            "page_size": spec.block_size,
            "sm_scale": scores.scale,
            # Keys beside its own that a query sees; -1 is all.
            "window_left": -1 if scores.window is None else scores.window - 1,
            "logits_soft_cap": scores.soft_cap,
            "q_data_type": self.q_dtype,
            "kv_data_type": self.kv_dtype,
        }


class Scores(NamedTuple):
    """A kind of layers: those that a plan serves.

    Attributes:
        scale: See :class:`pyengine.model.architectures.parts.LayerAttention`.
        window: The same.
        soft_cap: The same.
        table: The page table of their caches.
    """

    scale: float
    window: int | None
    soft_cap: float | None
    table: int


class Wrapper(Protocol):
    """One of FlashInfer's wrappers, for one size of a graph or for all steps that have none."""

    def plan(self, step: DeviceStep, rows: int, tokens: int, shared: int) -> None:
        """Divide the work of ``step``, of whose keys ``shared`` begin every row."""

    def run(
        self, queries: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> None:
        """Attend, in one layer: [tokens, heads, head_dim] over its keys and values."""

    def finish(self) -> None:
        """Wait until the device has copied the last plan, and reads its host memory no more.

        FlashInfer copies from pinned memory in ways that torch, whose memory it is, does not see.
        """


class Planned:
    """The memory in which a plan stays on the host until it is copied."""

    _host: Host

    def finish(self) -> None:
        """See :class:`Wrapper`."""
        self._host.wait()


class Decode(Planned):
    """One query a row."""

    def __init__(
        self, memory: Memory, step: DeviceStep, rows: int, captured: bool, kind: int, scores: Scores
    ) -> None:
        spec = memory.spec
        buffers = {}
        if captured:
            buffers = {
                "use_cuda_graph": True,
                "paged_kv_indptr_buffer": memory.ints(rows + 1),
                "paged_kv_indices_buffer": step.page_indices,
                "paged_kv_last_page_len_buffer": memory.ints(rows),
            }
        group = spec.num_heads // spec.num_kv_heads
        # Its kernel without tensor cores has few groups, and these it shares a key's loads among.
        self._wrapper = memory.library.decode(
            float_workspace_buffer=memory.workspace,
            kv_layout="NHD",
            use_tensor_cores=group >= 4 or spec.dtype != spec.kv_dtype,
            **buffers,
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=memory.workspace,
            int_workspace_buffer=memory.plan_memory(kind)[0],
        )
        self._memory, self._host, self._scores = memory, memory.host(), scores

    def plan(self, step: DeviceStep, rows: int, tokens: int, shared: int) -> None:
        """Plan; O(rows) in numpy."""
        host, memory = self._host, self._memory
        host.wait()
        tables = page_tables(step.host, rows, None, memory.spec.block_size, self._scores.table)
        self._wrapper.plan(
            indptr=host.take("indptr", tables.indptr),
            indices=step.page_indices[: tables.indptr[-1]],
            last_page_len=host.take("last_page_len", tables.last_page_len),
            seq_lens=host.take("kv_length", tables.kv_length),
            head_dim=memory.spec.head_dim,
            o_data_type=memory.q_dtype,
            non_blocking=True,
            **memory.arguments(self._scores),
        )
        host.mark()

    def run(
        self, queries: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> None:
        """Run it."""
        self._wrapper.run(q=queries, paged_kv_cache=cache, out=out)


class Ragged(Planned):
    """Any number of queries a row."""

    def __init__(
        self, memory: Memory, step: DeviceStep, rows: int, captured: bool, kind: int, scores: Scores
    ) -> None:
        buffers = {}
        if captured:
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf": memory.ints(rows + 2),
                "paged_kv_indptr_buf": memory.ints(rows + 2),
                "paged_kv_indices_buf": step.page_indices,
                "paged_kv_last_page_len_buf": memory.ints(rows + 1),
            }
        self._wrapper = memory.library.prefill(
            float_workspace_buffer=memory.workspace, kv_layout="NHD", **buffers
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=memory.workspace,
            int_workspace_buffer=memory.plan_memory(kind)[0],
        )
        self._memory, self._host, self._captured = memory, memory.host(), captured
        self._scores = scores
        self._queries = 0

    def plan(self, step: DeviceStep, rows: int, tokens: int, shared: int) -> None:
        """Plan; O(rows) in numpy."""
        host, memory, size = self._host, self._memory, self._memory.spec.block_size
        host.wait()
        tables = page_tables(
            step.host, rows, tokens if self._captured else None, size, self._scores.table
        )
        self._queries = int(tables.query_start[-1])
        self._wrapper.plan(
            qo_indptr=host.take("query_start", tables.query_start),
            paged_kv_indptr=host.take("indptr", tables.indptr),
            paged_kv_indices=step.page_indices[: tables.indptr[-1]],
            paged_kv_last_page_len=host.take("last_page_len", tables.last_page_len),
            seq_lens=host.take("kv_length", tables.kv_length),
            max_token_per_sequence=tokens,
            head_dim_qk=memory.spec.head_dim,
            causal=True,
            o_data_type=memory.q_dtype,
            non_blocking=True,
            **memory.arguments(self._scores),
        )
        host.mark()

    def run(
        self, queries: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> None:
        """Run it."""
        count = self._queries
        self._wrapper.run(q=queries[:count], paged_kv_cache=cache, out=out[:count])


class Cascade(Planned):
    """Any number of queries a row, of rows with a common prefix: that first, then what is left."""

    def __init__(
        self, memory: Memory, step: DeviceStep, rows: int, captured: bool, kind: int, scores: Scores
    ) -> None:
        buffers = {}
        if captured:
            sizes = (1, rows + 1)
            buffers = {
                "use_cuda_graph": True,
                "qo_indptr_buf_arr": [memory.ints(size + 1) for size in sizes],
                "paged_kv_indptr_buf_arr": [memory.ints(size + 1) for size in sizes],
                "paged_kv_indices_buf_arr": [step.page_indices, memory.own_indices],
                "paged_kv_last_page_len_buf_arr": [memory.ints(size) for size in sizes],
            }
        self._wrapper = memory.library.cascade(
            num_levels=2, float_workspace_buffer=memory.workspace, kv_layout="NHD", **buffers
        )
        self._wrapper.reset_workspace_buffer(
            float_workspace_buffer=memory.workspace, int_workspace_buffers=memory.plan_memory(kind)
        )
        self._memory, self._host, self._captured = memory, memory.host(), captured
        self._scores = scores
        self._queries = 0

    def plan(self, step: DeviceStep, rows: int, tokens: int, shared: int) -> None:
        """Plan; O(rows) in numpy."""
        host, memory, size = self._host, self._memory, self._memory.spec.block_size
        host.wait()
        whole = page_tables(
            step.host, rows, tokens if self._captured else None, size, self._scores.table
        )
        own, indices = without_prefix(whole, step.host.page_indices, shared, size)
        self._queries = int(whole.query_start[-1])
        own_indices = memory.own_indices[: len(indices)]
        own_indices.copy_(host.take("own_indices", indices), non_blocking=True)
        first = np.array([0, self._queries, shared // size, size], np.int32)
        prefix = PageTables(first[:2], first[[0, 2]], first[3:] * 0 + shared, first[3:])
        levels = (prefix, own)
        self._wrapper.plan(
            qo_indptr_arr=self._taken("query_start", [each.query_start for each in levels]),
            paged_kv_indptr_arr=self._taken("indptr", [each.indptr for each in levels]),
            # Row 0's pages come first, so the prefix begins the step's.
            paged_kv_indices_arr=[step.page_indices[: shared // size], own_indices],
            paged_kv_last_page_len=self._taken("last", [each.last_page_len for each in levels]),
            head_dim=memory.spec.head_dim,
            causal=True,
            **memory.arguments(self._scores),
        )
        host.mark()

    def _taken(self, name: str, levels: list[Ints]) -> list[torch.Tensor]:
        return [self._host.take(f"{name}{level}", each) for level, each in enumerate(levels)]

    def run(
        self, queries: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor], out: torch.Tensor
    ) -> None:
        """Run it."""
        count = self._queries
        out[:count].copy_(self._wrapper.run(q=queries[:count], paged_kv_cache=cache))

"""Paged attention by our own kernel, :mod:`pyengine.kernels.attention`."""

import torch

from pyengine.kernels.attention import Pages, Parts, attention
from pyengine.kernels.attention_tiling import (
    Heads,
    Tiling,
    parts_size,
    prefix_tiling_for,
    tiling_for,
)
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.cascade import variant_of
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device_step import DeviceStep


class TritonAttention:
    """Attention that reads everything of a step on the device: any step, and any graph's.

    Its variants are ``decode`` (one query a row) and ``ragged`` (any number), and either with
    ``_cascade`` where all rows begin with the same pages and it pays to attend to these once.

    Attributes:
        name: ``triton``.
        captures: Yes.
        memory_bytes: That it takes on the device.
    """

    name = "triton"
    captures = True

    def __init__(
        self, spec: AttentionSpec, device: torch.device, processors: int | None = None
    ) -> None:
        """Take the memory in which parts of the keys are merged.

        Args:
            spec: Heads and types, and the longest context.
            device: Of the model.
            processors: Of the device; None asks it.
        """
        if processors is None:
            processors = int(torch.cuda.get_device_properties(device).multi_processor_count)
        self._spec = spec
        self._heads = Heads(
            spec.num_heads,
            spec.num_kv_heads,
            spec.head_dim,
            getattr(torch, spec.dtype),
            getattr(torch, spec.kv_dtype),
        )
        self._processors = processors
        # Twice, so that a shared prefix has room beside what rows have of their own.
        self._room = 2 * parts_size(processors)
        with torch.inference_mode(False):
            self._parts = Parts(
                torch.zeros(self._room * spec.head_dim, device=device),
                torch.zeros(self._room, device=device),
            )
            self._shared = torch.zeros(1, dtype=torch.int32, device=device)
        self.memory_bytes = 4 * self._room * (spec.head_dim + 1) + 4
        self._found = 0
        self._launch: tuple[int, bool, Tiling, Tiling | None] | None = None

    def variant(self, step: DeviceStep) -> str:
        """``decode`` or ``ragged``, ``decode_cascade`` or ``ragged_cascade``."""
        heads = self._heads
        variant, self._found = variant_of(
            step.host,
            self._spec.block_size,
            token_bytes=2 * heads.kv * heads.dim * heads.kv_dtype.itemsize,
            part_bytes=4 * heads.query * heads.dim,
        )
        return variant

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Cut the launch, by its size alone; and tell the device what is shared."""
        one_query = variant.startswith("decode") and rows == tokens
        given = {"context": self._spec.max_context, "processors": self._processors}
        tiling = tiling_for(self._heads, rows, tokens, one_query=one_query, **given)
        prefix = None
        if variant.endswith("_cascade"):
            splits = self._room // max(1, tokens * self._heads.query) - tiling.splits
            if splits > 0:
                prefix = prefix_tiling_for(self._heads, tokens, splits=splits, **given)
                # The number goes along with the launch: no host memory is read later.
                self._shared.fill_(self._found)
        self._launch = rows, one_query, tiling, prefix

    def attend(
        self,
        step: DeviceStep,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        tokens: int,
        layer: LayerAttention,
        table: int = 0,
    ) -> None:
        """Launch the kernel for one layer; what all rows share counts only without a window."""
        if self._launch is None:
            raise RuntimeError("attend before plan")
        rows, one_query, tiling, prefix = self._launch
        if layer.window is not None or table > 0:
            prefix = None
        pages = step.page_tables[table]
        attention(
            queries[:tokens],
            keys,
            values,
            Pages(step.query_start, pages.kv_length, pages.page_indptr, step.page_indices),
            out[:tokens],
            rows=rows,
            one_query=one_query,
            scale=layer.scale,
            tiling=tiling,
            parts=self._parts,
            shared=None if prefix is None else self._shared,
            prefix=prefix,
            window=layer.window,
            soft_cap=layer.soft_cap,
            sinks=layer.sinks,
        )

    def forget(self, variant: str, tokens: int) -> None:
        """Nothing is kept for a graph."""

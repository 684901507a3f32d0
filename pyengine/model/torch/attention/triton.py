"""Paged attention by our own kernel, :mod:`pyengine.kernels.attention.paged`."""

from collections.abc import Sequence

import torch

from pyengine.kernels.attention.merging import FEW_PARTS, Parts
from pyengine.kernels.attention.paged import Pages, attention
from pyengine.kernels.attention.tiling import (
    Heads,
    Tiling,
    parts_size,
    prefix_tiling_for,
    tiling_for,
    token_counts,
)
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import Rehearsal
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.variants import (
    OF_PROMPTS,
    SHORT_QUERIES,
    variant_of,
)
from pyengine.model.torch.device.device_step import DeviceStep


class TritonAttention:
    """Attention that reads everything of a step on the device: any step, and any graph's.

    Its variants are those of :func:`variant_of`.

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
            device: The device of the model.
            processors: The multiprocessors of the device; None asks it.
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
        """See above."""
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
        one_query, tiling, prefix = self._cut(variant, rows, tokens)
        if prefix is not None:
            # The number goes along with the launch: no host memory is read later.
            self._shared.fill_(self._found)
        self._launch = rows, one_query, tiling, prefix

    def _cut(self, variant: str, rows: int, tokens: int) -> tuple[bool, Tiling, Tiling | None]:
        """Whether each row has one query; how the launch is cut, and that over a shared prefix."""
        one_query = variant.startswith("decode") and rows == tokens
        given = {"context": self._spec.max_context, "processors": self._processors}
        prompts = variant in OF_PROMPTS
        tiling = tiling_for(
            self._heads, rows, tokens, one_query=one_query, prompts=prompts, **given
        )
        if not variant.endswith("_cascade"):
            return one_query, tiling, None
        splits = self._room // max(1, tokens * self._heads.query) - tiling.splits
        if splits <= 0:
            return one_query, tiling, None
        return one_query, tiling, prefix_tiling_for(self._heads, tokens, splits=splits, **given)

    def rehearsals(self) -> Sequence[Rehearsal]:
        """One step for each kernel: a size of tiles, with parts to merge, few or many, or without.

        What a launch is compiled for depends on its size alone, and so do its kernels.
        """
        spec, found = self._spec, dict[tuple[object, ...], Rehearsal]()
        for rows in range(1, min(spec.max_rows, spec.max_tokens) + 1):
            counts = token_counts(self._heads, rows, spec.max_tokens)
            steps = [Rehearsal("decode", rows, rows)]
            steps += [Rehearsal("ragged", rows, tokens) for tokens in counts]
            long = {max(rows, SHORT_QUERIES + 1), *counts}
            steps += [
                Rehearsal("prompts", rows, tokens)
                for tokens in sorted(long)
                if SHORT_QUERIES < tokens <= spec.max_tokens
            ]
            for step in steps:
                plain = rows == 1 or step.variant == "prompts"
                more = [] if plain else [step._replace(variant=f"{step.variant}_cascade")]
                for each in (step, *more):
                    for kernel in self._kernels(each):
                        found.setdefault(kernel, each)
        return list(dict.fromkeys(found.values()))

    def _kernels(self, step: Rehearsal) -> list[tuple[object, ...]]:
        """What the kernels of a step are compiled for."""
        one_query, tiling, prefix = self._cut(*step)
        parts = tiling.splits + (0 if prefix is None else prefix.splits)
        kernels: list[tuple[object, ...]] = [
            ("attend", one_query, tiling.rows, parts == 1, prefix is not None)
        ]
        if prefix is not None:
            kernels.append(("prefix", prefix.rows))
        if parts > 1:
            kernels.append(("merge", parts <= FEW_PARTS))
        return kernels

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
            scale=layer.scale * layer.key_scale,
            value_scale=layer.value_scale,
            tiling=tiling,
            parts=self._parts,
            shared=None if prefix is None else self._shared,
            prefix=prefix,
            window=layer.window if layer.chunk is None else None,
            chunk=layer.chunk,
            positions=None if layer.chunk is None else step.positions,
            soft_cap=layer.soft_cap,
            sinks=layer.sinks,
        )

    def forget(self, variant: str, tokens: int) -> None:
        """Nothing is kept for a graph."""

"""Paged attention by FlashInfer (Z. Ye et al., 2025), planned from the host's arrays.

A graph keeps the addresses that its kernels read, so each size has a wrapper with buffers of its
own, which is planned before every replay; all other steps share one wrapper of each kind. Layers
that differ by scale, window or soft cap have a wrapper each; which there are is learned from the
first step.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.cascade import variant_of
from pyengine.model.torch.attention.flashinfer_workspace import GRAPH_TOKENS
from pyengine.model.torch.attention.flashinfer_wrappers import (
    Cascade,
    Decode,
    Library,
    Memory,
    Ragged,
    Scores,
    Wrapper,
    load_library,
)
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device_step import DeviceStep

_KINDS: dict[str, Callable[[Memory, DeviceStep, int, bool, int, Scores], Wrapper]] = {
    "decode": Decode,
    "ragged": Ragged,
    "cascade": Cascade,
}


class _Planned(NamedTuple):
    """A step as it was planned; see :meth:`FlashInferAttention.plan`."""

    step: DeviceStep
    variant: str
    rows: int
    tokens: int
    captured: bool


class FlashInferAttention:
    """Attention by FlashInfer's wrappers: one for each graph's size, and one for all other steps.

    Its variants are ``decode``, ``ragged``, and ``decode_cascade`` or ``ragged_cascade`` where all
    rows begin with the same pages and it pays to attend to these once.

    Attributes:
        name: ``flashinfer``.
        captures: Yes.
        memory_bytes: That it takes on the device, beside a little for each graph.
    """

    name = "flashinfer"
    captures = True

    def __init__(
        self, spec: AttentionSpec, device: torch.device, library: Library | None = None
    ) -> None:
        """Take the workspaces; kernels are compiled, or found, at the first plan."""
        with torch.inference_mode(False):
            self._memory = Memory(spec, device, library or load_library())
        self.memory_bytes = self._memory.memory_bytes
        self._spec = spec
        self._layers: list[Scores] = []
        self._wrappers: dict[tuple[str, int, int, Scores], Wrapper] = {}
        self._current: dict[Scores, Wrapper] = {}
        self._planned: _Planned | None = None
        self._found = 0

    def variant(self, step: DeviceStep) -> str:
        """``decode`` or ``ragged``, ``decode_cascade`` or ``ragged_cascade``."""
        spec, memory = self._spec, self._memory
        variant, self._found = variant_of(
            step.host,
            spec.block_size,
            token_bytes=2 * spec.num_kv_heads * spec.head_dim * memory.kv_dtype.itemsize,
            part_bytes=memory.q_dtype.itemsize * spec.num_heads * spec.head_dim,
        )
        return variant

    def plan(
        self, step: DeviceStep, variant: str, rows: int, tokens: int, *, captured: bool
    ) -> None:
        """Plan the wrapper of this size; waits for the device only if it is behind the last but
        one step of this size.

        Raises:
            ValueError: For a graph of more tokens than there is a workspace for.
        """
        if captured and tokens > GRAPH_TOKENS:
            raise ValueError(f"a graph has at most {GRAPH_TOKENS} tokens here, not {tokens}")
        self._planned = _Planned(step, variant, rows, tokens, captured)
        self._current.clear()
        for scores in self._layers:
            self._plan_for(scores, self._planned)

    def _plan_for(self, scores: Scores, planned: _Planned) -> Wrapper:
        """Plan for the layers of a kind."""
        step, variant, rows, tokens, captured = planned
        if scores.window is not None or scores.table > 0:
            # Rows that begin alike need not do so within a window; what they share is looked for
            # in the first table.
            variant = variant.removesuffix("_cascade")
        kind = "cascade" if variant.endswith("_cascade") else variant
        if kind == "decode" and rows != tokens:
            kind = "ragged"  # a step of one query a row in a graph with room for more
        key = (planned.variant, rows, tokens, scores) if captured else (kind, 0, 0, scores)
        wrapper = self._wrappers.get(key)
        if wrapper is None:
            at = self._layers.index(scores)
            with torch.inference_mode(False):  # its buffers are written to in any mode
                wrapper = _KINDS[kind](self._memory, step, rows, captured, at, scores)
            self._wrappers[key] = wrapper
        wrapper.plan(step, rows, tokens, self._found)
        self._current[scores] = wrapper
        return wrapper

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
        """Run the wrapper that was planned for such layers.

        Raises:
            RuntimeError: Before :meth:`plan`.
        """
        scores = Scores(layer.scale, layer.window, layer.soft_cap, table)
        wrapper = self._current.get(scores)
        if wrapper is None:
            if self._planned is None:
                raise RuntimeError("attend before plan")
            # The first such layer ever; what is captured was computed once before.
            self._layers.append(scores)
            wrapper = self._plan_for(scores, self._planned)
        wrapper.run(queries[:tokens], (keys, values), out[:tokens])

    def forget(self, variant: str, tokens: int) -> None:
        """Give the wrapper of a graph back: it has pinned memory of its own, of megabytes."""
        for key in [key for key in self._wrappers if (key[0], key[2]) == (variant, tokens)]:
            self._wrappers.pop(key).finish()

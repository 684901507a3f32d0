"""Paged attention by FlashInfer (Z. Ye et al., 2025), planned from the host's arrays.

A graph keeps the addresses that its kernels read, so each size has a wrapper with buffers of its
own, which is planned before every replay; all other steps share one wrapper of each kind.
"""

from collections.abc import Callable

import torch

from pyengine.model.torch.attention.cascade import variant_of
from pyengine.model.torch.attention.flashinfer_workspace import GRAPH_TOKENS
from pyengine.model.torch.attention.flashinfer_wrappers import (
    Cascade,
    Decode,
    Library,
    Memory,
    Ragged,
    Wrapper,
    load_library,
)
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.device_step import DeviceStep

_KINDS: dict[str, Callable[[Memory, DeviceStep, int, bool], Wrapper]] = {
    "decode": Decode,
    "ragged": Ragged,
    "cascade": Cascade,
}


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
        self._wrappers: dict[tuple[str, int, int], Wrapper] = {}
        self._current: Wrapper | None = None
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
        kind = "cascade" if variant.endswith("_cascade") else variant
        if kind == "decode" and rows != tokens:
            kind = "ragged"  # a step of one query a row in a graph with room for more
        key = (variant, rows, tokens) if captured else (kind, 0, 0)
        wrapper = self._wrappers.get(key)
        if wrapper is None:
            with torch.inference_mode(False):  # its buffers are written to in any mode
                wrapper = _KINDS[kind](self._memory, step, rows, captured)
            self._wrappers[key] = wrapper
        wrapper.plan(step, rows, tokens, self._found)
        self._current = wrapper

    def attend(
        self,
        step: DeviceStep,
        queries: torch.Tensor,
        keys: torch.Tensor,
        values: torch.Tensor,
        out: torch.Tensor,
        tokens: int,
    ) -> None:
        """Run the wrapper that was planned, for one layer."""
        if self._current is None:
            raise RuntimeError("attend before plan")
        self._current.run(queries[:tokens], (keys, values), out[:tokens])

    def forget(self, variant: str, tokens: int) -> None:
        """Give the wrapper of a graph back: it has pinned memory of its own, of megabytes."""
        for key in [key for key in self._wrappers if (key[0], key[2]) == (variant, tokens)]:
            self._wrappers.pop(key).finish()

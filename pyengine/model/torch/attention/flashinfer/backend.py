"""Paged attention by FlashInfer (Z. Ye et al., 2025), planned from the host's arrays.

A graph keeps the addresses that its kernels read, so each size has a wrapper with buffers of its
own, which is planned before every replay; all other steps share one wrapper of each kind. Layers
that differ by scale, window or soft cap have a wrapper each; which there are is learned from the
first step.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch

from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.backend import Rehearsal
from pyengine.model.torch.attention.flashinfer.launches import Graphed, Segmented
from pyengine.model.torch.attention.flashinfer.library import Library, load_library
from pyengine.model.torch.attention.flashinfer.memory import Memory, Scores
from pyengine.model.torch.attention.flashinfer.workspace import GRAPH_TOKENS
from pyengine.model.torch.attention.flashinfer.wrappers import Cache, Launches
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.variants import decodes
from pyengine.model.torch.device.device_step import DeviceStep


class _Planned(NamedTuple):
    """A step as it was planned; see :meth:`FlashInferAttention.plan`."""

    step: DeviceStep
    variant: str
    rows: int
    tokens: int
    captured: bool


class FlashInferAttention:
    """Attention by FlashInfer's wrappers: one for each graph's size, and one for all other steps.

    Its variants are ``decode`` and ``ragged``. It takes another backend's variant that begins
    with ``decode`` for the first, and any other for the second.

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
        self._launches: dict[tuple[str, int, int, Scores], Launches] = {}
        self._current: dict[Scores, Launches] = {}
        self._planned: _Planned | None = None

    def variant(self, step: DeviceStep) -> str:
        """``decode`` where every row has one query token."""
        return "decode" if decodes(step.host) else "ragged"

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

    def _plan_for(self, scores: Scores, planned: _Planned) -> Launches:
        """Plan for the layers of a kind."""
        step, variant, rows, tokens, captured = planned
        key = (variant, rows, tokens, scores) if captured else ("", 0, 0, scores)
        launches = self._launches.get(key)
        if launches is None:
            with torch.inference_mode(False):  # its buffers are written to in any mode
                launches = self._make(scores, planned)
            self._launches[key] = launches
        launches.plan(step, rows, tokens)
        self._current[scores] = launches
        return launches

    def _make(self, scores: Scores, planned: _Planned) -> Launches:
        memory, kind = self._memory, self._layers.index(scores)
        step, variant, rows, tokens, captured = planned
        if not captured:
            return Segmented(memory, kind, scores)
        # A step of one query a row may be in a graph with room for more.
        one_query = variant.startswith("decode") and rows == tokens
        return Graphed(memory, step, rows, kind, scores, one_query=one_query)

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
        launches = self._current.get(scores)
        if launches is None:
            if self._planned is None:
                raise RuntimeError("attend before plan")
            # The first such layer ever; what is captured was computed once before.
            self._layers.append(scores)
            launches = self._plan_for(scores, self._planned)
        cache = Cache(keys, values, layer.key_scale, layer.value_scale)
        launches.run(queries[:tokens], cache, out[:tokens])

    def rehearsals(self) -> Sequence[Rehearsal]:
        """Decodes, short rows and prompts, which have kernels of their own."""
        spec = self._spec
        prompt = min(spec.max_tokens, spec.max_context - spec.block_size)
        found = [Rehearsal("decode", 1, 1), Rehearsal("ragged", 1, min(4, prompt))]
        found.append(Rehearsal("ragged", 1, prompt))
        return [each for each in found if each.tokens > 0]

    def forget(self, variant: str, tokens: int) -> None:
        """Give the wrapper of a graph back: it has pinned memory of its own, of megabytes."""
        for key in [key for key in self._launches if (key[0], key[2]) == (variant, tokens)]:
            self._launches.pop(key).finish()

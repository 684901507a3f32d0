"""Prompts over a cache of 8-bit floats by FlashInfer's kernels of FlashAttention 3.

These multiply queries and keys of one type, and round what softmax gives to 8 bits too
(flashinfer 0.7.2, include/flashinfer/attention/hopper/quantization). So queries become 8-bit
floats, in units of the scale that a checkpoint has for them: one that has none was not meant to be
computed so, and its queries keep 16 bits, as do those of decodes and short rows: the kernels of
FlashAttention 2 take no others.
"""

from typing import Any

import torch

from pyengine.kernels.layers.quantize import FLOAT8
from pyengine.model.architectures.parts import LayerAttention
from pyengine.model.torch.attention.flashinfer.memory import Memory, Scores
from pyengine.model.torch.attention.flashinfer.wrappers import Cache, Prefill
from pyengine.model.torch.device.ops import torch_ops

HEAD_DIMS = (128, 256)
"""Those of 64 are left out where the library's kernels come compiled."""


def takes_float8_queries(memory: Memory, layer: LayerAttention) -> bool:
    """Whether prompts of ``layer`` are for :class:`Float8Prefill`.

    Its kernels know no soft cap, which they would ignore, and the library refuses windows where it
    has one sequence; so both are left to kernels that take queries of 16 bits.
    """
    plain = layer.window is None and layer.soft_cap is None
    fits = memory.kv_dtype == FLOAT8 and memory.spec.head_dim in HEAD_DIMS
    return memory.library.flash3 and layer.query_scale is not None and plain and fits


class Float8Prefill(Prefill):
    """Any number of queries a row, which become 8-bit floats."""

    def __init__(self, memory: Memory, kind: int, scores: Scores, place: int) -> None:
        """See :class:`Prefill`."""
        super().__init__(memory, kind, scores, place, backend="fa3")
        self._ops = torch_ops(memory.device)

    def layout(self) -> dict[str, Any]:
        """See :class:`pyengine.model.torch.attention.flashinfer.wrappers.Wrapper`."""
        return super().layout() | {"q_data_type": FLOAT8}

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """See :class:`Prefill`."""
        assert cache.query_scale is not None
        given = queries[: self.queries]
        small = torch.empty(given.shape, dtype=FLOAT8, device=given.device)
        self._ops.quantize_by(given.flatten(1), cache.query_scale, small.flatten(1))
        self._wrapper.run(
            q=small, out=out[: self.queries], q_scale=cache.query_scale, **cache.arguments()
        )

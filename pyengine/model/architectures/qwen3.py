"""Qwen3, dense (Yang et al., "Qwen3 Technical Report", 2025): a Llama whose queries and keys are
normalized, head by head, before they are rotated.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.decoder import Decoder
from pyengine.model.architectures.parts import Buffer, HeadNorm, Linear, Parts
from pyengine.model.architectures.projections import Projections, refuse
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class NormedHeads:
    """A linear layer to queries, keys and values, of which queries and keys are normalized."""

    def __init__(self, linear: Linear, norm: HeadNorm) -> None:
        self._linear = linear
        self._norm = norm

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """[rows, in] -> ``out`` [rows, (heads + 2 * kv heads) * head_dim]."""
        self._linear(x, out, rows)
        self._norm(out, rows)


class Qwen3Projections(Projections):
    """Llama's projections, and norms of heads."""

    def qkv(self, attention: str) -> Linear:
        """From hidden states to normalized queries and keys, and values."""
        query, key = (
            self.weights.vector(f"{attention}{name}.weight", self.info.head_dim)
            for name in ("q_norm", "k_norm")
        )
        norm = self.parts.head_norm(query, key, self.epsilon, self.info)
        return NormedHeads(super().qkv(attention), norm)


def qwen3(info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts) -> Decoder:
    """Load a dense Qwen3; raises as :class:`Decoder` does."""
    refuse(config, "mlp_bias")
    attention = bool(config.get("attention_bias"))
    return Decoder(
        Qwen3Projections(info, config, weights, parts, qkv_bias=attention, out_bias=attention)
    )

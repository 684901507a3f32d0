"""Phi-3 and Phi-4 (Abdin et al., "Phi-3 Technical Report", 2024): a Llama with one weight for
queries, keys and values, and one for gates and ups.

LongRoPE, which those with a context of 128k have, is not supported.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.decoder import Decoder
from pyengine.model.architectures.parts import Linear, Parts
from pyengine.model.architectures.projections import Projections, refuse
from pyengine.model.positions import rotary_parameters
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


class Phi3Projections(Projections):
    """Llama's projections, some of them in one piece."""

    def qkv(self, attention: str) -> Linear:
        """From hidden states to queries, keys and values."""
        return self._fused(f"{attention}qkv_proj.weight", self.heads)

    def gate_up(self, mlp: str) -> Linear:
        """From hidden states to gates, then ups."""
        return self._fused(f"{mlp}gate_up_proj.weight", (self.inner, self.inner))

    def _fused(self, name: str, rows: tuple[int, ...]) -> Linear:
        return self.parts.linear(self.weights.fused(name, rows, self.info.hidden_size))


def phi3(info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts) -> Decoder:
    """Load a Phi-3; raises as :class:`Decoder` does."""
    refuse(config, "attention_bias", "mlp_bias")
    kind = rotary_parameters(config)["rope_type"]
    if kind != "default":
        # Whatever a Phi-3 calls it, it is LongRoPE.
        raise ModelLoadError(f"rotary scaling {kind!r} is not supported for Phi-3: it is LongRoPE")
    return Decoder(Phi3Projections(info, config, weights, parts, default_epsilon=1e-5))

"""Qwen2 and Qwen2.5 (Yang et al., "Qwen2 Technical Report", 2024): a Llama whose queries, keys and
values have biases, and nothing else has.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.decoder import Decoder
from pyengine.model.architectures.parts import Parts
from pyengine.model.architectures.projections import Projections, refuse
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


def qwen2(info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts) -> Decoder:
    """Load a Qwen2; raises as :class:`Decoder` does."""
    refuse(config, "attention_bias", "mlp_bias")
    return Decoder(Projections(info, config, weights, parts, qkv_bias=True))

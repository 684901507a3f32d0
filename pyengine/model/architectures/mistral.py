"""Mistral (Jiang et al., "Mistral 7B", 2023): a Llama without biases; the layers of its first
version have a sliding window.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.decoder import Decoder
from pyengine.model.architectures.parts import Parts
from pyengine.model.architectures.projections import Projections, refuse
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


def mistral(info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts) -> Decoder:
    """Load a Mistral; raises as :class:`Decoder` does."""
    refuse(config, "attention_bias", "mlp_bias")
    return Decoder(Projections(info, config, weights, parts))

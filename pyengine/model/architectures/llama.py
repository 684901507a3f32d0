"""Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023), in the
variants that ``LlamaForCausalLM`` of transformers knows: with biases or without.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.decoder import Decoder
from pyengine.model.architectures.parts import Parts
from pyengine.model.architectures.projections import Projections
from pyengine.model.runner import ModelInfo
from pyengine.model.weights.sharding import Weights


def llama(info: ModelInfo, config: Mapping[str, Any], weights: Weights, parts: Parts) -> Decoder:
    """Load a Llama; raises as :class:`Decoder` does."""
    attention = bool(config.get("attention_bias"))
    return Decoder(
        Projections(
            info,
            config,
            weights,
            parts,
            qkv_bias=attention,
            out_bias=attention,
            mlp_bias=bool(config.get("mlp_bias")),
        )
    )

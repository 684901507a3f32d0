"""Llama (Touvron et al., "LLaMA: Open and Efficient Foundation Language Models", 2023), in the
variants that ``LlamaForCausalLM`` of transformers knows: with biases or without. Falcon 3, Yi,
SmolLM 1 and 2 and many more are Llamas; CWM is one with windows.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common
from pyengine.model.architectures.traits import Traits


def llama(config: Mapping[str, Any]) -> Traits:
    """The traits of a Llama."""
    attention = bool(config.get("attention_bias"))
    return Traits(
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        **common(config),
    )


def cwm(config: Mapping[str, Any]) -> Traits:
    """The traits of a CWM (Meta, "CWM: An Open-Weights LLM [...] with World Models", 2025)."""
    return llama(config)

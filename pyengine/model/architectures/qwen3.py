"""Qwen3, dense (Yang et al., "Qwen3 Technical Report", 2025): a Llama whose queries and keys are
normalized, head by head, before they are rotated. The text part of Qwen3-VL is one.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, refuse
from pyengine.model.architectures.traits import Traits


def qwen3(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense Qwen3."""
    refuse(config, "mlp_bias")
    attention = bool(config.get("attention_bias"))
    return Traits(qk_norm="head", qkv_bias=attention, out_bias=attention, **common(config))

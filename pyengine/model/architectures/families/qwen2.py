"""Qwen2 and Qwen2.5 (Yang et al., "Qwen2 Technical Report", 2024): a Llama whose queries, keys and
values have biases, and nothing else has.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, refuse
from pyengine.model.architectures.traits import Traits


def qwen2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen2."""
    refuse(config, "attention_bias", "mlp_bias")
    return Traits(qkv_bias=True, **common(config))

"""Granite 3 and 4, dense (Granite Team, IBM, 2024): a Llama with four multipliers."""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, number
from pyengine.model.architectures.traits import Traits


def granite(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite."""
    attention = bool(config.get("attention_bias"))
    return Traits(
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        attention_scale=number(config, "attention_multiplier", 1.0),
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        branch_scale=number(config, "residual_multiplier", 1.0),
        logits_scale=1.0 / number(config, "logits_scaling", 1.0),
        **common(config),
    )

"""NanoChat (Karpathy, 2025): a Llama whose norms have no weights, one of embeddings among them, and
whose heads are normalized behind their rotation, which turns the other way.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import (
    activation,
    common,
    count,
    layer_count,
    number,
    require,
    whole_heads,
)
from pyengine.model.architectures.traits import Names, Traits


def nanochat(config: Mapping[str, Any]) -> Traits:
    """The traits of a NanoChat."""
    rotary = whole_heads(config)
    require(rotary, "rope_type", "default")
    hidden, heads = count(config, "hidden_size"), count(config, "num_attention_heads")
    dim = config.get("head_dim") or hidden // heads
    backwards = {**rotary, "rope_type": "factors", "factors": [-1.0] * (dim // 2)}
    bias = bool(config.get("attention_bias"))
    shared = common(config) | {"activation": activation(config.get("hidden_act") or "relu2")}
    return Traits(
        names=Names(gate_up=("fc1",), down="fc2", embedding_norm="model.norm"),
        norm_weight=False,
        gated=False,
        qk_norm="plain",
        qk_norm_behind=True,
        qkv_bias=bias,
        out_bias=bias,
        rotary=(backwards,) * layer_count(config),
        logits_cap=number(config, "final_logit_softcapping", 0.0) or None,
        **shared,
    )

"""AFMoE, which Trinity is (Arcee AI, 2025): experts by sigmoid, norms on both sides, gates of each
element of attention's output, and positions where layers have windows.
"""

import math
from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import (
    common,
    count,
    layer_types,
    number,
    with_positions,
)
from pyengine.model.architectures.traits import AttentionGates, Mixture, Names, Traits


def afmoe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An AFMoE's config.json with the pattern of its windows by the usual name."""
    every = config.get("global_attn_every_n_layers") or 4
    return {**config, "layer_types": layer_types({**config, "sliding_window_pattern": every})}


def afmoe(config: Mapping[str, Any]) -> Traits:
    """The traits of an AFMoE."""
    inner, shared = count(config, "moe_intermediate_size"), config.get("num_shared_experts") or 0
    bias = bool(config.get("attention_bias"))
    return Traits(
        names=Names(
            after_attention="post_attention_layernorm",
            before_mlp="pre_mlp_layernorm",
            after_mlp="post_mlp_layernorm",
        ),
        qk_norm="head",
        qkv_bias=bias,
        out_bias=bias,
        attention_gates=AttentionGates("gate_proj", by_head=False),
        rotary=with_positions(
            config, (kind == "sliding_attention" for kind in layer_types(config, 4))
        ),
        embedding_scale=math.sqrt(count(config, "hidden_size"))
        if config.get("mup_enabled")
        else 1.0,
        mixture=Mixture(
            count=count(config, "num_experts"),
            inner=inner,
            routing=Routing(
                count(config, "num_experts_per_tok"),
                sigmoid=True,
                normalized=True,
                scale=number(config, "route_scale", 1.0),
            ),
            dense=frozenset(range(int(config.get("num_dense_layers") or 0))),
            router="router.gate",
            bias="expert_bias",
            shared="shared_experts" if shared else None,
            shared_inner=inner * shared,
        ),
        **common(config, epsilon=1e-5),
    )

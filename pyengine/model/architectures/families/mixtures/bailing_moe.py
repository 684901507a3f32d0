"""Ling and Ring 1 and 2 (Ling Team, "Every FLOP Counts", 2025), which their files call Bailing: a
GLM-4.5 by other names, whose first version sends tokens by a softmax.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.norms_behind.glm import glm4_moe
from pyengine.model.architectures.reading import refuse, renamed, require
from pyengine.model.architectures.traits import Names, Traits

NAMES = Names(
    embedding="model.word_embeddings",
    attention="attention.",
    qkv=("query_key_value",),
    out="dense",
    query_norm="query_layernorm",
    key_norm="key_layernorm",
)


def bailing_moe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Ling's config.json in the usual names."""
    return renamed(
        config,
        attention_bias="use_qkv_bias",
        n_routed_experts="num_experts",
        n_shared_experts="num_shared_experts",
    )


def bailing_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Ling or a Ring of the first two versions."""
    refuse(config, "norm_head", "norm_softmax", "multi_gate")
    require(config, "score_function", "softmax", "sigmoid")
    sigmoid = config.get("score_function") == "sigmoid"
    traits = glm4_moe({"partial_rotary_factor": 1.0, **config})
    mixture = traits.mixture
    assert mixture is not None, "GLM-4.5 has experts"
    normalized = sigmoid or mixture.routing.normalized
    bias = "gate.expert_bias" if config.get("moe_router_enable_expert_bias") else None
    return replace(
        traits,
        names=NAMES,
        out_bias=bool(config.get("use_bias")),
        mixture=replace(
            mixture,
            routing=replace(mixture.routing, sigmoid=sigmoid, normalized=normalized),
            bias=bias,
        ),
    )

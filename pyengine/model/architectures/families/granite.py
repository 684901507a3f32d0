"""Granite 3 and 4 (Granite Team, IBM, 2024): a Llama with four multipliers, or one with experts."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import common, count, layer_count, number
from pyengine.model.architectures.traits import ExpertNames, Mixture, Names, Traits
from pyengine.model.positions import rotary_parameters


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


def granite_swa(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite with sliding windows and sinks, and a base of positions by layer."""
    rotary = rotary_parameters(config)
    bases = config.get("layer_rope_theta") or [rotary["rope_theta"]] * layer_count(config)
    return replace(
        granite(config),
        names=Names(sinks="sinks"),
        rotary=tuple({**rotary, "rope_theta": base} if base else None for base in bases),
    )


def hyperclovax(config: Mapping[str, Any]) -> Traits:
    """The traits of a HyperCLOVA X (NAVER Cloud, 2025): a Granite with norms on both sides."""
    traits = granite(config)
    if config.get("use_post_norm", True):
        names = Names(after_attention="post_norm1", after_mlp="post_norm2")
        traits = replace(traits, names=names)
    # Where it is left out, scores are scaled as everywhere.
    scale = traits.attention_scale if config.get("attention_multiplier") is not None else None
    return replace(traits, attention_scale=scale)


def granite_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite with experts."""
    mixture = Mixture(
        count=count(config, "num_local_experts"),
        inner=count(config, "intermediate_size"),
        # Among the chosen, a softmax of all logits is that of theirs.
        routing=Routing(count(config, "num_experts_per_tok"), normalized=True),
        mlp="block_sparse_moe.",
        router="router.layer",
        names=ExpertNames(gate_up=("input_linear.weight[{}]",), down="output_linear.weight[{}]"),
    )
    return replace(granite(config), mixture=mixture)

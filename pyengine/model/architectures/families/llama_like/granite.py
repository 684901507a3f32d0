"""Granite 3 and 4 (Granite Team, IBM, 2024): a Llama with four multipliers, or one with experts,
perhaps beside one that all tokens go through. :mod:`..hybrids.mamba2` has Granite 4's other layers.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import (
    common,
    count,
    layer_count,
    number,
    whole_heads,
    with_positions,
)
from pyengine.model.architectures.traits import ExpertNames, Mixture, Names, Traits

SHARED_NAMES = Names(gate_up=("input_linear",), down="output_linear")
"""Names of the expert that all tokens go through, or of the dense layer in its place."""


def granite(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite."""
    attention = bool(config.get("attention_bias"))
    return Traits(
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        attention_scale=config.get("attention_multiplier"),
        embedding_scale=number(config, "embedding_multiplier", 1.0),
        branch_scale=number(config, "residual_multiplier", 1.0),
        logits_scale=1.0 / number(config, "logits_scaling", 1.0),
        **common(config),
    )


def granite_swa(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite with sliding windows and sinks, and a base of positions by layer."""
    return _swa(config, granite(config))


def granite_moe_swa(config: Mapping[str, Any]) -> Traits:
    """Granite with experts, by newer names."""
    traits = granite_moe(config)
    assert traits.mixture is not None
    names = ExpertNames(gate_up=("experts.gate_up_proj[{}]",), down="experts.down_proj[{}]")
    mixture = replace(traits.mixture, router="router", names=names)
    return _swa(config, replace(traits, mixture=mixture))


def _swa(config: Mapping[str, Any], traits: Traits) -> Traits:
    rotary = whole_heads(config)
    bases = config.get("layer_rope_theta") or [rotary["rope_theta"]] * layer_count(config)
    with_positions(config, (bool(base) for base in bases))  # as many as layers
    return replace(
        traits,
        names=Names(sinks="sinks"),
        rotary=tuple({**rotary, "rope_theta": base} if base else None for base in bases),
    )


def hyperclovax(config: Mapping[str, Any]) -> Traits:
    """The traits of a HyperCLOVA X (NAVER Cloud, 2025): a Granite with norms on both sides."""
    traits = granite(config)
    if config.get("use_post_norm", True):
        names = Names(after_attention="post_norm1", after_mlp="post_norm2")
        traits = replace(traits, names=names)
    # Granite divides by it.
    return replace(traits, logits_scale=number(config, "logits_scaling", 1.0))


def granite_moe_shared(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite with experts, beside one that all tokens go through."""
    traits, inner = granite_moe(config), config.get("shared_intermediate_size")
    if not inner:
        return traits
    assert traits.mixture is not None
    mixture = replace(
        traits.mixture,
        mlp="",
        router="block_sparse_moe.router.layer",
        names=ExpertNames(
            gate_up=("block_sparse_moe.input_linear.weight[{}]",),
            down="block_sparse_moe.output_linear.weight[{}]",
        ),
        shared="shared_mlp",
        shared_inner=inner,
    )
    return replace(traits, names=SHARED_NAMES, mixture=mixture)


def granite_hybrid(config: Mapping[str, Any]) -> Traits:
    """The traits of a Granite 4 whose layers all attend, dense or with experts."""
    if config.get("num_local_experts"):
        traits = granite_moe_shared(config)
    else:
        names = replace(SHARED_NAMES, mlp="shared_mlp.")
        inner = (count(config, "shared_intermediate_size"),) * layer_count(config)
        traits = replace(granite(config), names=names, inner=inner)
    if config.get("position_embedding_type") == "rope":
        return traits
    return replace(traits, rotary=(None,) * layer_count(config))


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

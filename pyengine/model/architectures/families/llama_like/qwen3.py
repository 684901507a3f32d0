"""Qwen3, dense (Yang et al., "Qwen3 Technical Report", 2025): a Llama whose queries and keys are
normalized, head by head, before they are rotated. The text part of Qwen3-VL is one; Qwen3-MoE has
experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import (
    common,
    count,
    dense_first_layers,
    layer_count,
    layer_types,
    refuse,
)
from pyengine.model.architectures.traits import ExpertNames, Mixture, Traits
from pyengine.model.positions import rotary_by_kind


def qwen3(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense Qwen3."""
    refuse(config, "mlp_bias")
    attention = bool(config.get("attention_bias"))
    return Traits(qk_norm="head", qkv_bias=attention, out_bias=attention, **common(config))


def qwen3_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen3 with experts."""
    mixture = Mixture(
        # transformers 5 writes its own name for all families.
        count=count(config, "num_experts" if config.get("num_experts") else "num_local_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
        dense=dense_layers(config),
    )
    return replace(qwen3(config), mixture=mixture)


def qwen3_vl_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of the text part of a Qwen3-VL with experts, all of a layer's in one tensor."""
    traits = qwen3_moe({**config, "norm_topk_prob": True})
    if traits.mixture is None:
        return traits
    names = ExpertNames(gate_up=("experts.gate_up_proj[{}].T",), down="experts.down_proj[{}].T")
    return replace(traits, mixture=replace(traits.mixture, names=names))


def mellum(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mellum 2 (JetBrains, 2026): a Qwen3-MoE with positions by kind of layer."""
    traits = qwen3_moe({"norm_topk_prob": True, **config})
    assert traits.mixture is not None
    return replace(
        traits,
        rotary=tuple(rotary_by_kind(config, kind) for kind in layer_types(config)),
        mixture=replace(traits.mixture, dense=dense_first_layers(config)),
    )


def dense_layers(config: Mapping[str, Any]) -> frozenset[int]:
    """The layers without experts."""
    every, only = config.get("decoder_sparse_step") or 1, config.get("mlp_only_layers") or ()
    layers = range(layer_count(config))
    return frozenset(layer for layer in layers if layer in only or (layer + 1) % every)

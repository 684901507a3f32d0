"""Qwen3-Next (Qwen Team, 2025) and Qwen3.5 to 3.8 (Qwen Team, 2026): three layers of Gated DeltaNet
to one of attention, whose output has gates; norms whose weights are stored as what differs from 1,
and a quarter of each head rotated. Qwen3-Next and the larger ones of the others have experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.qwen3 import dense_layers
from pyengine.model.architectures.mixers.gated_delta import DeltaNames, GatedDelta
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    number,
    require,
    stated,
)
from pyengine.model.architectures.traits import STACKED, AttentionGates, Mixture, Traits
from pyengine.model.positions import rotary_parameters

BY_HEAD = DeltaNames(by_head=("in_proj_qkvz", "in_proj_ba"))


def with_kinds(config: Mapping[str, Any]) -> dict[str, Any]:
    """A config.json of the families with the kinds of its layers."""
    every = number(config, "full_attention_interval", 4)
    kinds = [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(layer_count(config))
    ]
    return {"layer_types": kinds, **stated(config)}


def qwen3_next(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen3-Next."""
    mixture = replace(_mixture(config), dense=dense_layers(config))
    return replace(_traits(config, BY_HEAD), mixture=mixture)


def qwen3_5(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense Qwen3.5."""
    return _traits(config, DeltaNames())


def qwen3_5_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen3.5 with experts."""
    return replace(qwen3_5(config), mixture=_mixture(config))


def _traits(config: Mapping[str, Any], names: DeltaNames) -> Traits:
    require(config, "hidden_act", "silu", "swish")
    bias, shared = bool(config.get("attention_bias")), common(config)
    mixer = GatedDelta(
        key_heads=count(config, "linear_num_key_heads"),
        value_heads=count(config, "linear_num_value_heads"),
        key_dim=count(config, "linear_key_head_dim"),
        value_dim=count(config, "linear_value_head_dim"),
        kernel=count(config, "linear_conv_kernel_dim"),
        epsilon=shared["epsilon"],
        names=names,
    )
    kinds = layers_of_kinds(config, "full_attention", "linear_attention")
    mixers = tuple(mixer if kind == "linear_attention" else None for kind in kinds)
    return Traits(
        layers=keys_beside(config, mixers),
        mixers=mixers,
        attention_gates=AttentionGates(),
        qk_norm="head",
        norm_offset=1.0,
        qkv_bias=bias,
        out_bias=bias,
        rotary=(rotary_parameters(config),) * len(kinds),
        **shared,
    )


def _mixture(config: Mapping[str, Any]) -> Mixture:
    return Mixture(
        stacked=STACKED,
        count=count(config, "num_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob", True)),
        ),
        shared="shared_expert",
        shared_inner=count(config, "shared_expert_intermediate_size"),
        shared_gate="shared_expert_gate",
    )

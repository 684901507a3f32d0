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
    require,
    with_defaults,
)
from pyengine.model.architectures.traits import STACKED, AttentionGates, Mixture, Traits
from pyengine.model.positions import rotary_parameters

BY_HEAD = DeltaNames(by_head=("in_proj_qkvz", "in_proj_ba"))

_LEFT_OUT: dict[str, Any] = {
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 48,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "head_dim": 256,
    "vocab_size": 151_936,
    "max_position_embeddings": 32_768,
    "partial_rotary_factor": 0.25,
    "full_attention_interval": 4,
    "linear_conv_kernel_dim": 4,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_num_key_heads": 16,
    "linear_num_value_heads": 32,
    "moe_intermediate_size": 512,
    "shared_expert_intermediate_size": 512,
    "num_experts_per_tok": 10,
    "num_experts": 512,
    "norm_topk_prob": True,
}


def qwen3_next_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Qwen3-Next's config.json with what it leaves out."""
    return _with_kinds(with_defaults(config, **_LEFT_OUT))


def qwen3_5_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A dense Qwen3.5's config.json with what it leaves out."""
    own = {
        "hidden_size": 4096,
        "intermediate_size": 12_288,
        "num_hidden_layers": 32,
        "num_key_value_heads": 4,
        "vocab_size": 248_320,
    }
    return _with_kinds(with_defaults(config, **_LEFT_OUT | own))


def qwen3_5_moe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of a Qwen3.5 with experts, with what it leaves out."""
    own = {
        "num_hidden_layers": 40,
        "num_experts_per_tok": 8,
        "num_experts": 256,
        "vocab_size": 248_320,
    }
    return _with_kinds(with_defaults(config, **_LEFT_OUT | own))


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


def _with_kinds(config: dict[str, Any]) -> dict[str, Any]:
    every = count(config, "full_attention_interval")
    kinds = [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(layer_count(config))
    ]
    return {"layer_types": kinds, **config}


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

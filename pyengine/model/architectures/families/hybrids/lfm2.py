"""LFM2 (Liquid AI, "LFM2 Technical Report", 2025): gated short convolutions, and some layers that
attend; LFM2-MoE with experts. LFM3 (Liquid AI, 2026) has norms on both sides, windows, and a gate
for each head's output.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.mixtures.mixtral import EXPERT_NAMES
from pyengine.model.architectures.mixers.short_convolution import ShortConvolution
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    number,
    with_defaults,
)
from pyengine.model.architectures.traits import AttentionGates, Mixture, Names, Traits
from pyengine.model.positions import rotary_by_kind

NAMES = Names(
    norm="model.embedding_norm",
    out="out_proj",
    query_norm="q_layernorm",
    key_norm="k_layernorm",
    mlp="feed_forward.",
    gate_up=("w1", "w3"),
    down="w2",
    before_attention="operator_norm",
    before_mlp="ffn_norm",
)
LFM3_NAMES = replace(NAMES, out="o_proj", query_norm="q_norm", key_norm="k_norm")

_LEFT_OUT: dict[str, Any] = {
    "hidden_size": 2560,
    "intermediate_size": 12_288,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 65_536,
    "max_position_embeddings": 128_000,
    "norm_eps": 1e-5,
    "conv_L_cache": 3,
    "rope_theta": 1e6,
}


def lfm2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An LFM2's config.json in the usual names, with what it leaves out."""
    usual = with_defaults(config, **_LEFT_OUT)
    layers = layer_count(usual)
    attend = usual.get("full_attn_idxs", range(layers))
    kinds = ["full_attention" if layer in attend else "conv" for layer in range(layers)]
    return {"layer_types": kinds, **_renamed(usual)}


def lfm2_moe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of an LFM2 with experts, with what it leaves out."""
    own = {
        "hidden_size": 2048,
        "intermediate_size": 7168,
        "moe_intermediate_size": 1792,
        "num_dense_layers": 2,
        "num_experts_per_tok": 4,
        "num_experts": 32,
    }
    return _renamed(with_defaults(config, **_LEFT_OUT | own))


def lfm3_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An LFM3's config.json with what it leaves out."""
    own = {
        "hidden_size": 2048,
        "intermediate_size": 7680,
        "num_hidden_layers": 24,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 128_000,
        "conv_L_cache": 7,
        "sliding_window": 256,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 1e4},
            "full_attention": {
                "rope_type": "proportional",
                "rope_theta": 1e6,
                "partial_rotary_factor": 0.5,
            },
        },
    }
    usual = with_defaults(config, **_LEFT_OUT | own)
    four = ("sliding_attention", "conv", "full_attention", "conv")
    kinds = ["conv", *(four[layer % 4] for layer in range(1, layer_count(usual)))]
    return {"layer_types": kinds, **_renamed(usual)}


def lfm2(config: Mapping[str, Any]) -> Traits:
    """The traits of an LFM2."""
    inner = count(config, "intermediate_size")
    if config.get("block_auto_adjust_ff_dim", True):
        inner = 2 * inner // 3
        inner = int(number(config, "block_ffn_dim_multiplier", 1.0) * inner)
        multiple = int(number(config, "block_multiple_of", 256))
        inner = -(-inner // multiple) * multiple
    traits = _traits(config)
    return replace(traits, inner=(inner,) * len(traits.layers))


def lfm2_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of an LFM2 with experts."""
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            sigmoid=True,
            normalized=bool(config.get("norm_topk_prob", True)),
            scale=number(config, "routed_scaling_factor", 1.0),
        ),
        dense=frozenset(range(int(number(config, "num_dense_layers", 2)))),
        mlp="feed_forward.",
        names=EXPERT_NAMES,
        bias="expert_bias" if config.get("use_expert_bias", True) else None,
    )
    return replace(_traits(config), mixture=mixture)


def lfm3(config: Mapping[str, Any]) -> Traits:
    """The traits of an LFM3."""
    names, bias = LFM3_NAMES, bool(config.get("attention_bias"))
    if config.get("use_sandwich_norm", True):
        names = replace(names, after_attention="post_operator_norm", after_mlp="post_ffn_norm")
    return replace(
        _traits(config, "sliding_attention"),
        names=names,
        attention_gates=AttentionGates("gate_proj")
        if config.get("use_attention_gate", True)
        else None,
        qkv_bias=bias,
        out_bias=bias,
    )


def _renamed(config: dict[str, Any]) -> dict[str, Any]:
    """With the names of other families for the width of feed-forward layers and for the head."""
    usual = dict(config)
    for own, name in (
        ("norm_eps", "rms_norm_eps"),
        ("block_ff_dim", "intermediate_size"),
        ("tie_embedding", "tie_word_embeddings"),
    ):
        if usual.get(own) is not None:
            usual[name] = usual[own]
    return usual


def _traits(config: Mapping[str, Any], *further: str) -> Traits:
    kinds = layers_of_kinds(config, "full_attention", "conv", *further)
    mixer = ShortConvolution(
        channels=count(config, "hidden_size"),
        kernel=count(config, "conv_L_cache"),
        bias=bool(config.get("conv_bias")),
    )
    mixers = tuple(mixer if kind == "conv" else None for kind in kinds)
    windows = [
        count(config, "sliding_window") if kind == "sliding_attention" else None for kind in kinds
    ]
    return Traits(
        names=NAMES,
        layers=keys_beside(config, mixers, windows),
        mixers=mixers,
        qk_norm="head",
        rotary=tuple(rotary_by_kind(config, kind) for kind in kinds),
        **common(config, tied=True, epsilon=1e-5),
    )

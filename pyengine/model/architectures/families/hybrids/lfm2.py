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
    renamed,
    stated,
    whole_heads,
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


def lfm2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An LFM2's config.json in the usual names."""
    layers = layer_count(config)
    attend = stated(config).get("full_attn_idxs", range(layers))
    kinds = ["full_attention" if layer in attend else "conv" for layer in range(layers)]
    return {"layer_types": kinds, **lfm2_moe_config(stated(config))}


def lfm2_moe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The config.json of an LFM2 with experts in the usual names."""
    return renamed(
        config,
        rms_norm_eps="norm_eps",
        intermediate_size="block_ff_dim",
        tie_word_embeddings="tie_embedding",
    )


def lfm3_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An LFM3's config.json in the usual names."""
    four = ("sliding_attention", "conv", "full_attention", "conv")
    kinds = ["conv", *(four[layer % 4] for layer in range(1, layer_count(config)))]
    return {"layer_types": kinds, **lfm2_moe_config(stated(config))}


def lfm2(config: Mapping[str, Any]) -> Traits:
    """The traits of an LFM2."""
    whole_heads(config)
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
    whole_heads(config)
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

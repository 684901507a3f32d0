"""Gemma (Gemma Team, "Gemma: Open Models Based on Gemini Research and Technology", 2024): the
embeddings times the root of their width, norms whose weights are stored as what differs from 1,
and GELU.

Gemma 2 ("Gemma 2", 2024) has norms on both sides, soft caps, and a window in every other layer;
Gemma 3 ("Gemma 3 Technical Report", 2025) norms of heads, and two kinds of positions.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.reading import activation, common, layer_types, number
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_by_kind

NORMS_ON_BOTH_SIDES = Names(
    after_attention="post_attention_layernorm",
    before_mlp="pre_feedforward_layernorm",
    after_mlp="post_feedforward_layernorm",
)


def gemma(config: Mapping[str, Any]) -> Traits:
    """The traits of a Gemma 1, whose first files say GELU and mean its approximation."""
    name = config.get("hidden_activation") or config.get("hidden_act")
    return Traits(**_shared({**config, "hidden_activation": None if name == "gelu" else name}))


def gemma2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Gemma 2."""
    return Traits(
        names=NORMS_ON_BOTH_SIDES,
        attention_scale=number(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        attention_cap=config.get("attn_logit_softcapping", 50.0),
        logits_cap=config.get("final_logit_softcapping", 30.0),
        **_shared(config),
    )


def vaultgemma(config: Mapping[str, Any]) -> Traits:
    """The traits of a VaultGemma: a Gemma 2 with norms before its blocks only."""
    return replace(gemma2(config), names=Names(before_mlp="pre_feedforward_layernorm"))


def gemma3(config: Mapping[str, Any]) -> Traits:
    """The traits of a Gemma 3."""
    return Traits(
        names=NORMS_ON_BOTH_SIDES,
        qk_norm="head",
        attention_scale=number(config, "query_pre_attn_scalar", 256.0) ** -0.5,
        rotary=tuple(rotary_by_kind(config, kind) for kind in layer_types(config, 6)),
        attention_cap=config.get("attn_logit_softcapping"),
        logits_cap=config.get("final_logit_softcapping"),
        **_shared(config),
    )


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    bias = bool(config.get("attention_bias"))
    name = config.get("hidden_activation") or "gelu_pytorch_tanh"
    return common(config, tied=True) | {
        "activation": activation(name),
        "norm_offset": 1.0,
        "embedding_scale": float(config["hidden_size"]) ** 0.5,
        "qkv_bias": bias,
        "out_bias": bias,
    }

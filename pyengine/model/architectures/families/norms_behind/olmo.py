"""OLMo 2 and 3 (OLMo Team, "2 OLMo 2 Furious", 2025; "Olmo 3", 2025): norms behind attention and
feed-forward layers, and of all of a token's queries as one, and of its keys. OLMo 3 has windows.

OLMo 1 (Groeneveld et al., "OLMo: Accelerating the Science of Language Models", 2024) is a Llama
with layer norms that have neither weights nor biases.

OLMoE (Muennighoff et al., "OLMoE: Open Mixture-of-Experts Language Models", 2024) is a Llama with
experts, FlexOlmo (Shi et al., "FlexOlmo", 2025) an OLMo 2 with them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.reading import common, count, layer_types, number, refuse
from pyengine.model.architectures.traits import NORMS_AFTER, Mixture, Traits
from pyengine.model.positions import rotary_by_kind, rotary_parameters


def olmo(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMo 1; its norms' epsilon is in no config.json."""
    refuse(config, "clip_qkv")
    bias = bool(config.get("attention_bias"))
    return Traits(
        layer_norm=True,
        norm_weight=False,
        qkv_bias=bias,
        out_bias=bias,
        **common(config) | {"epsilon": 1e-5},
    )


def olmo2(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMo 2."""
    bias = bool(config.get("attention_bias"))
    return Traits(
        names=NORMS_AFTER,
        qk_norm="all",
        qkv_bias=bias,
        out_bias=bias,
        **common(config, epsilon=1e-5),
    )


def olmo3(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMo 3: scalings for long contexts are of the layers without window."""
    bias = bool(config.get("attention_bias"))
    rotary = {
        kind: rotary_by_kind(config, kind) for kind in ("full_attention", "sliding_attention")
    }
    if rotary["sliding_attention"] == rotary["full_attention"]:
        theta = rotary["full_attention"]["rope_theta"]
        rotary["sliding_attention"] = rotary_parameters({"rope_theta": theta})
    return Traits(
        names=NORMS_AFTER,
        qk_norm="all",
        qkv_bias=bias,
        out_bias=bias,
        rotary=tuple(rotary[kind] for kind in layer_types(config, 4)),
        **common(config, epsilon=1e-5),
    )


def olmoe(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMoE."""
    refuse(config, "clip_qkv")
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=count(config, "intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
    )
    shared = replace(llama(config), epsilon=number(config, "rms_norm_eps", 1e-5))
    return replace(shared, qk_norm="all", mixture=mixture)


def flex_olmo(config: Mapping[str, Any]) -> Traits:
    """The traits of a FlexOlmo."""
    return replace(olmo2(config), mixture=olmoe(config).mixture)

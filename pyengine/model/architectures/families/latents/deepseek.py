"""DeepSeek-V2 (DeepSeek-AI, "DeepSeek-V2: A Strong, Economical, and Efficient Mixture-of-Experts
Language Model", 2024) and V3 (DeepSeek-AI, "DeepSeek-V3 Technical Report", 2024): latent attention,
and experts behind dense first layers. R1 and Kimi K2 are of V3's shape.

GLM-4.7-Flash (Z.ai, 2026) has V3's attention and GLM-4.5's experts, Youtu-LLM (Tencent, 2025) V3's
attention and no experts. DeepSeek-V3.2 (2025) and GLM-5 (Z.ai, 2026) find by an index which keys a
query sees, those of all tokens until there are more than it passes.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.norms_behind.glm import glm4_moe
from pyengine.model.architectures.mixers.latent_attention import LatentAttention
from pyengine.model.architectures.reading import (
    common,
    count,
    dense_first_layers,
    layer_count,
    number,
    refuse,
    require,
)
from pyengine.model.architectures.traits import STACKED, Mixture, Traits
from pyengine.model.positions import rotary_parameters


def latent_attention(config: Mapping[str, Any], *, interleaved: bool = True) -> LatentAttention:
    """The latent attention that a config.json says of all layers.

    Args:
        config: A model's config.json.
        interleaved: Rotation turns neighbours, where config.json has no ``rope_interleave``.

    Raises:
        ModelLoadError: config.json lacks a size, or elements that are rotated are no pairs.
    """
    plain, rotated = count(config, "qk_nope_head_dim"), count(config, "qk_rope_head_dim")
    if rotated % 2:
        raise ModelLoadError(f"config.json: 'qk_rope_head_dim' of {rotated} is not even")
    given = config.get("rope_interleave", interleaved)
    low = config.get("q_lora_rank")
    return LatentAttention(
        heads=count(config, "num_attention_heads"),
        query_rank=None if low is None else count(config, "q_lora_rank"),
        rank=count(config, "kv_lora_rank"),
        plain=plain,
        rotated=rotated,
        value_dim=count(config, "v_head_dim"),
        scale=(plain + rotated) ** -0.5 * _temperature(rotary_parameters(config)),
        interleaved=bool(given),
        bias=bool(config.get("attention_bias")),
    )


def attends_to_latents(config: Mapping[str, Any], mixer: LatentAttention) -> dict[str, Any]:
    """The traits of a model all of whose layers have the ``mixer``."""
    layers = layer_count(config)
    return {"mixers": (mixer,) * layers, "layers": (mixer.keeps,) * layers}


def deepseek_v2(config: Mapping[str, Any]) -> Traits:
    """The traits of a DeepSeek-V2 or V2-Lite."""
    require(config, "topk_method", "greedy", "group_limited_greedy")
    grouped = config.get("topk_method") == "group_limited_greedy"
    routing = Routing(
        count(config, "num_experts_per_tok"),
        scale=number(config, "routed_scaling_factor", 1.0),
        groups=count(config, "n_group") if grouped else 1,
        chosen_groups=count(config, "topk_group") if grouped else 1,
        group_best=1,
    )
    return Traits(
        mlp_bias=bool(config.get("mlp_bias")),
        mixture=_mixture(config, routing),
        **attends_to_latents(config, latent_attention({**config, "rope_interleave": True})),
        **common(config),
    )


def deepseek_v3(config: Mapping[str, Any]) -> Traits:
    """The traits of a DeepSeek-V3, an R1 or a Kimi K2."""
    mixture = replace(
        _mixture(config, sigmoid_routing(config)), bias="gate.e_score_correction_bias"
    )
    return Traits(
        mixture=mixture, **attends_to_latents(config, latent_attention(config)), **common(config)
    )


def deepseek_v32(config: Mapping[str, Any]) -> Traits:
    """The traits of a DeepSeek-V3.2 or a GLM-5, for as many tokens as its index passes."""
    refuse(config, "mlp_bias")
    traits = deepseek_v3({**config, "rope_interleave": True})
    mixture = traits.mixture
    assert mixture is not None, "DeepSeek-V3 has experts"
    return replace(
        traits,
        mixture=replace(mixture, dense=dense_first_layers(config, 3)),
        most_tokens=count(config, "index_topk"),
    )


def sigmoid_routing(config: Mapping[str, Any]) -> Routing:
    """DeepSeek-V3's routing: by sigmoids, and by the best two experts of each group."""
    return Routing(
        count(config, "num_experts_per_tok"),
        sigmoid=True,
        normalized=bool(config.get("norm_topk_prob")),
        scale=number(config, "routed_scaling_factor", 1.0),
        groups=count(config, "n_group"),
        chosen_groups=count(config, "topk_group"),
    )


def glm4_moe_lite(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4.7-Flash."""
    for name in ("n_group", "topk_group"):
        count(config, name)
    mixture = glm4_moe({"mlp_layer_types": _dense_first(config), **config}).mixture
    return Traits(
        mixture=mixture,
        **attends_to_latents(config, latent_attention(config)),
        **common(config, epsilon=1e-5),
    )


def youtu(config: Mapping[str, Any]) -> Traits:
    """The traits of a Youtu-LLM.

    Raises:
        ModelLoadError: The angles are those of another size than ``qk_rope_head_dim``.
    """
    attention = latent_attention(config)
    if (size := config.get("head_dim")) not in (None, attention.rotated):
        raise ModelLoadError(
            f"config.json: 'head_dim' of {size!r} is not supported where 'qk_rope_head_dim' is "
            f"{attention.rotated}"
        )
    return Traits(**attends_to_latents(config, attention), **common(config))


def _mixture(config: Mapping[str, Any], routing: Routing) -> Mixture:
    """The experts, and the one that all tokens go through."""
    inner = count(config, "moe_intermediate_size")
    shared = config.get("n_shared_experts") or 0
    return Mixture(
        count=count(config, "n_routed_experts"),
        inner=inner,
        routing=routing,
        dense=dense_first_layers({**config, "mlp_layer_types": None}),
        shared="shared_experts" if shared else None,
        shared_inner=inner * shared,
        stacked=STACKED,
    )


def _dense_first(config: Mapping[str, Any]) -> list[str]:
    return ["dense"] + ["sparse"] * (layer_count(config) - 1)


def _temperature(rotary: Mapping[str, Any]) -> float:
    """What YaRN's ``mscale_all_dim`` makes of the scale of scores."""
    all_of_it = rotary.get("mscale_all_dim")
    if rotary["rope_type"] == "default" or not all_of_it:
        return 1.0
    factor = number(rotary, "factor", 1.0)
    root = 1.0 if factor <= 1 else 0.1 * float(all_of_it) * math.log(factor) + 1.0
    return root * root

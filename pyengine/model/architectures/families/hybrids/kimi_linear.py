"""Kimi Linear (Moonshot AI, 2025): three layers of Kimi Delta Attention to one of latent attention
without positions, and DeepSeek-V3's experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.latents.deepseek import deepseek_v3, latent_attention
from pyengine.model.architectures.families.mixtures.mixtral import EXPERT_NAMES
from pyengine.model.architectures.mixers.kimi_delta import KimiDelta
from pyengine.model.architectures.mixers.latent_attention import LatentAttention
from pyengine.model.architectures.reading import (
    count,
    dense_first_layers,
    layer_count,
    layers_of_kinds,
    number,
    renamed,
    require,
)
from pyengine.model.architectures.traits import Names, Traits

EXPERTS = "block_sparse_moe."
USUAL_NAMES = {
    "max_position_embeddings": "model_max_length",
    "norm_topk_prob": "moe_renormalize",
    "n_group": "num_expert_group",
    "num_experts_per_tok": "num_experts_per_token",
    "n_shared_experts": "num_shared_experts",
    "n_routed_experts": "num_experts",
}
"""Names of DeepSeek-V3, and those of this family's files in their place."""


def kimi_linear_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Kimi Linear's config.json in the usual names."""
    usual = renamed({**config, "n_routed_experts": config.get("num_local_experts")}, **USUAL_NAMES)
    own = config.get("linear_attn_config") or {}
    names = {
        "linear_head_dim": "head_dim",
        "linear_num_heads": "num_heads",
        "linear_conv_kernel_dim": "short_conv_kernel_size",
    }
    usual |= {name: own[theirs] for name, theirs in names.items() if theirs in own}
    if usual.get("layer_types") is None:
        # They are counted from 1. Without a list, every fourth from the fifth on attends.
        attend = own.get("full_attn_layers", range(5, layer_count(usual) + 1, 4))
        usual["layer_types"] = [
            "full_attention" if layer + 1 in attend else "linear_attention"
            for layer in range(layer_count(usual))
        ]
    return usual


def kimi_linear(config: Mapping[str, Any]) -> Traits:
    """The traits of a Kimi Linear."""
    traits = delta_and_latents(config, latent_attention(config), 1, epsilon=1e-5)
    mixture = traits.mixture
    assert mixture is not None
    return replace(
        traits,
        # As transformers saves it, dense layers are called what experts are.
        names=Names(mlp=EXPERTS if config.get("mlp_layer_types") else "mlp."),
        rotary=(None,) * len(traits.mixers),
        mixture=replace(mixture, mlp=EXPERTS, names=EXPERT_NAMES),
    )


def delta_and_latents(
    config: Mapping[str, Any], attend: LatentAttention, dense: int, *, epsilon: float, **own: Any
) -> Traits:
    """The traits of a DeepSeek-V3, most of whose layers have Kimi Delta Attention.

    Args:
        config: A model's config.json.
        attend: What the others have.
        dense: The first layers without experts, where config.json does not say.
        epsilon: The epsilon of norms, likewise.
        own: What sets its delta attention apart.
    """
    require(config, "hidden_act", "silu", "swish")
    traits = deepseek_v3(config)
    mixture = traits.mixture
    assert mixture is not None, "DeepSeek-V3 has experts"
    delta = KimiDelta(
        heads=count(config, "linear_num_heads"),
        head_dim=count(config, "linear_head_dim"),
        kernel=count(config, "linear_conv_kernel_dim"),
        epsilon=number(config, "rms_norm_eps", epsilon),
        **own,
    )
    kinds = layers_of_kinds(config, "full_attention", "linear_attention")
    mixers = tuple(attend if kind == "full_attention" else delta for kind in kinds)
    return replace(
        traits,
        mixers=mixers,
        layers=tuple(mixer.keeps for mixer in mixers),
        mixture=replace(mixture, dense=dense_first_layers(config, dense), stacked=None),
    )

"""Ling 3 (inclusionAI, 2026), which its files call Bailing: Kimi Delta Attention whose decays have
a bound, the last layer of each group with latent attention whose heads have gates, and
DeepSeek-V3's experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.hybrids.kimi_linear import USUAL_NAMES, delta_and_latents
from pyengine.model.architectures.families.latents.deepseek import latent_attention
from pyengine.model.architectures.reading import (
    count,
    layer_count,
    number,
    refuse,
    renamed,
    stated,
)
from pyengine.model.architectures.traits import Names, Traits

NAMES: dict[str, Any] = {"start": "attention.", "out": "dense"}


def bailing_hybrid_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Ling 3's config.json in the usual names."""
    usual = renamed(config, **USUAL_NAMES)
    every = count(usual, "layer_group_size")
    kinds = [
        "linear_attention" if (layer + 1) % every else "full_attention"
        for layer in range(layer_count(usual))
    ]
    own = {
        "layer_types": kinds,
        "linear_head_dim": usual.get("head_dim"),
        "linear_num_heads": usual.get("num_attention_heads"),
        "linear_conv_kernel_dim": usual.get("short_conv_kernel_size"),
    }
    return own | stated(usual)


def bailing_hybrid(config: Mapping[str, Any]) -> Traits:
    """The traits of a Ling 3."""
    refuse(config, "q_lora_rank", "attention_bias")
    bound = number(config, "kda_lower_bound", -5.0) if config.get("kda_safe_gate", True) else None
    attend = replace(latent_attention(config), gate="g_proj", **NAMES)
    traits = delta_and_latents(config, attend, 2, epsilon=1e-6, narrow=False, bound=bound, **NAMES)
    mixture = traits.mixture
    assert mixture is not None
    return replace(
        traits,
        names=Names(embedding="model.word_embeddings"),
        mixture=replace(mixture, bias="gate.expert_bias"),
    )

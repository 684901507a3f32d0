"""GLM-4, dense (GLM Team, "ChatGLM: A Family of Large Language Models [...]", 2024): pairs of
neighbours are rotated, in the first half of each head; since 2025 with norms on both sides.

GLM-4.5 (GLM-4.5 Team, "GLM-4.5: Agentic, Reasoning, and Coding Foundation Models", 2025) has
experts, and dense first layers.
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
    number,
)
from pyengine.model.architectures.traits import Mixture, Names, Traits
from pyengine.model.positions import rotary_parameters

PLAIN = Names(gate_up=("gate_up_proj",))
NORMS_ON_BOTH_SIDES = replace(
    PLAIN, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
)


def glm(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4 of 2024: ``GlmForCausalLM``."""
    return _glm(config, PLAIN)


def glm4(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4 of 2025: ``Glm4ForCausalLM``."""
    return _glm(config, NORMS_ON_BOTH_SIDES)


def glm4_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4.5, 4.6 or 4.7; the layers that draft are not read."""
    inner = count(config, "moe_intermediate_size")
    shared = config.get("n_shared_experts") or 0
    mixture = Mixture(
        count=count(config, "n_routed_experts"),
        inner=inner,
        routing=Routing(
            count(config, "num_experts_per_tok"),
            sigmoid=True,
            normalized=bool(config.get("norm_topk_prob", True)),
            scale=number(config, "routed_scaling_factor", 1.0),
            groups=config.get("n_group") or 1,
            chosen_groups=config.get("topk_group") or 1,
        ),
        dense=dense_first_layers(config),
        bias="gate.e_score_correction_bias",
        shared="shared_experts" if shared else None,
        shared_inner=inner * shared,
    )
    rotary = rotary_parameters({"partial_rotary_factor": 0.5, **config})
    return Traits(
        qk_norm="head" if config.get("use_qk_norm") else None,
        qkv_bias=bool(config.get("attention_bias")),
        rotary=(rotary,) * layer_count(config),
        mixture=mixture,
        **common(config, epsilon=1e-5),
    )


def solar_open(config: Mapping[str, Any]) -> Traits:
    """The traits of a Solar Open (Upstage, 2026): a GLM-4.5 whose heads are rotated whole."""
    return glm4_moe({"partial_rotary_factor": 1.0, **config, "use_qk_norm": False})


def _glm(config: Mapping[str, Any], names: Names) -> Traits:
    rotary = rotary_parameters({"partial_rotary_factor": 0.5, **config})
    return Traits(
        names=names,
        rotary=(rotary,) * layer_count(config),
        interleaved=True,
        qkv_bias=bool(config.get("attention_bias")),
        **common(config, epsilon=1.5625e-7),
    )

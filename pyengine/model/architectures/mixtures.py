"""Families with mixtures of experts: Mixtral (Jiang et al., "Mixtral of Experts", 2024), Qwen3-MoE
(Yang et al., "Qwen3 Technical Report", 2025), GLM-4.5 (GLM-4.5 Team, "GLM-4.5: Agentic, Reasoning,
and Coding Foundation Models", 2025), MiniMax-M2 (MiniMax, 2025) and OLMoE (Muennighoff et al.,
2024).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.llama import llama
from pyengine.model.architectures.mistral import mistral
from pyengine.model.architectures.parts import Routing
from pyengine.model.architectures.qwen3 import qwen3
from pyengine.model.architectures.reading import common, layer_count, number, refuse
from pyengine.model.architectures.traits import Mixture, Traits
from pyengine.model.positions import rotary_parameters

MIXTRAL_NAMES = ("w1", "w3", "w2")


def mixtral(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mixtral."""
    mixture = Mixture(
        count=_count(config, "num_local_experts"),
        inner=_count(config, "intermediate_size"),
        routing=Routing(_count(config, "num_experts_per_tok"), normalized=True),
        mlp="block_sparse_moe.",
        names=MIXTRAL_NAMES,
    )
    shared = mistral(config)
    return replace(shared, mixture=mixture, epsilon=number(config, "rms_norm_eps", 1e-5))


def qwen3_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen3 with experts."""
    layers, every = layer_count(config), config.get("decoder_sparse_step") or 1
    only = config.get("mlp_only_layers") or ()
    dense = {layer for layer in range(layers) if layer in only or (layer + 1) % every}
    mixture = Mixture(
        # transformers 5 writes its own name for all families.
        count=_count(config, "num_experts" if config.get("num_experts") else "num_local_experts"),
        inner=_count(config, "moe_intermediate_size"),
        routing=Routing(
            _count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
        dense=frozenset(dense),
    )
    return replace(qwen3(config), mixture=mixture)


def olmoe(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMoE."""
    refuse(config, "clip_qkv")
    mixture = Mixture(
        count=_count(config, "num_experts"),
        inner=_count(config, "intermediate_size"),
        routing=Routing(
            _count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
    )
    shared = replace(llama(config), epsilon=number(config, "rms_norm_eps", 1e-5))
    return replace(shared, qk_norm="all", mixture=mixture)


def glm4_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4.5, 4.6 or 4.7; the layers that draft are not read."""
    inner = _count(config, "moe_intermediate_size")
    shared = config.get("n_shared_experts") or 0
    mixture = Mixture(
        count=_count(config, "n_routed_experts"),
        inner=inner,
        routing=Routing(
            _count(config, "num_experts_per_tok"),
            sigmoid=True,
            normalized=bool(config.get("norm_topk_prob", True)),
            scale=number(config, "routed_scaling_factor", 1.0),
            groups=config.get("n_group") or 1,
            chosen_groups=config.get("topk_group") or 1,
        ),
        dense=frozenset(range(config.get("first_k_dense_replace") or 0)),
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


def minimax_m2(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiniMax-M2: all queries of a token are normalized as one."""
    rotary = rotary_parameters(config)
    dim = config.get("rotary_dim")
    if dim and rotary["partial_rotary_factor"] == 1:
        rotary["partial_rotary_factor"] = dim / _count(config, "head_dim")
    mixture = Mixture(
        count=_count(config, "num_local_experts"),
        inner=_count(config, "intermediate_size"),
        routing=Routing(_count(config, "num_experts_per_tok"), sigmoid=True, normalized=True),
        mlp="block_sparse_moe.",
        names=MIXTRAL_NAMES,
        bias="e_score_correction_bias",
    )
    return Traits(
        qk_norm="all" if config.get("use_qk_norm", True) else None,
        rotary=(rotary,) * layer_count(config),
        mixture=mixture,
        **common(config),
    )


def _count(config: Mapping[str, Any], name: str) -> int:
    value = config.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelLoadError(f"config.json: {name!r} must be a positive integer, not {value!r}")
    return value

"""Qwen2 and Qwen2.5 (Yang et al., "Qwen2 Technical Report", 2024): a Llama whose queries, keys and
values have biases, and nothing else has. Qwen1.5-MoE and Qwen2-MoE have experts, beside one that
all tokens go through and each weighs.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.qwen3 import dense_layers
from pyengine.model.architectures.reading import common, count, refuse
from pyengine.model.architectures.traits import Mixture, Traits


def qwen2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen2."""
    refuse(config, "attention_bias", "mlp_bias")
    return Traits(qkv_bias=True, **common(config))


def qwen2_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen2 with experts."""
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
        dense=dense_layers(config),
        shared="shared_expert",
        shared_inner=count(config, "shared_expert_intermediate_size"),
        shared_gate="shared_expert_gate",
    )
    return replace(qwen2(config), qkv_bias=bool(config.get("qkv_bias", True)), mixture=mixture)

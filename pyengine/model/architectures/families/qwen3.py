"""Qwen3, dense (Yang et al., "Qwen3 Technical Report", 2025): a Llama whose queries and keys are
normalized, head by head, before they are rotated. The text part of Qwen3-VL is one; Qwen3-MoE has
experts.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import common, count, layer_count, refuse
from pyengine.model.architectures.traits import Mixture, Traits


def qwen3(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense Qwen3."""
    refuse(config, "mlp_bias")
    attention = bool(config.get("attention_bias"))
    return Traits(qk_norm="head", qkv_bias=attention, out_bias=attention, **common(config))


def qwen3_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Qwen3 with experts."""
    layers, every = layer_count(config), config.get("decoder_sparse_step") or 1
    only = config.get("mlp_only_layers") or ()
    dense = {layer for layer in range(layers) if layer in only or (layer + 1) % every}
    mixture = Mixture(
        # transformers 5 writes its own name for all families.
        count=count(config, "num_experts" if config.get("num_experts") else "num_local_experts"),
        inner=count(config, "moe_intermediate_size"),
        routing=Routing(
            count(config, "num_experts_per_tok"),
            normalized=bool(config.get("norm_topk_prob")),
        ),
        dense=frozenset(dense),
    )
    return replace(qwen3(config), mixture=mixture)

"""Hunyuan 3 (Tencent, 2026): a Qwen3 with experts chosen by sigmoids, beside shared ones."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.families.llama_like.qwen3 import qwen3
from pyengine.model.architectures.reading import count, dense_first_layers, number
from pyengine.model.architectures.traits import Mixture, Traits


def hy_v3(config: Mapping[str, Any]) -> Traits:
    """The traits of a Hunyuan 3; the layers that draft are not read."""
    inner, shared = count(config, "moe_intermediate_size"), config.get("num_shared_experts") or 0
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=inner,
        routing=Routing(
            count(config, "num_experts_per_tok"),
            sigmoid=True,
            normalized=True,
            scale=number(config, "router_scaling_factor", 2.826),
        ),
        dense=dense_first_layers(config, 1),
        router="router.gate",
        bias="expert_bias",
        shared="shared_mlp" if shared else None,
        shared_inner=inner * shared,
    )
    traits = qwen3({**config, "mlp_bias": False})
    return replace(traits, mixture=mixture, epsilon=number(config, "rms_norm_eps", 1e-5))

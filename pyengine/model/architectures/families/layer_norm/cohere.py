"""Command R (Cohere, 2024) and Command A and R7B (Cohere, "Command A", 2025): attention and the
feed-forward layer side by side, layer norms without bias. In the second, only the layers with a
window have positions. Cohere 2 MoE (2026) has experts.
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
    layer_types,
    number,
    refuse,
    require,
    with_positions,
)
from pyengine.model.architectures.traits import Mixture, Names, Traits


def cohere(config: Mapping[str, Any]) -> Traits:
    """The traits of a Command R."""
    refuse(config, "use_qk_norm")
    return _cohere(config)


def cohere2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Command A or R7B."""
    flags = [kind == "sliding_attention" for kind in layer_types(config, 4)]
    return _cohere(config, rotary=with_positions(config, flags))


def cohere2_moe_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Cohere 2 MoE's config.json in the usual names: one width is of experts, another of the
    dense layers before them, and so is the pattern of windows.
    """
    inner, layers = config.get("intermediate_size"), layer_count(config)
    first = int(config.get("first_k_dense_replace") or 0)
    every = config.get("prefix_dense_sliding_window_pattern") or 1
    pattern = config.get("sliding_window_pattern") or 4
    full = [(layer + 1) % every == 0 for layer in range(first)]
    full += [(layer + 1) % pattern == 0 for layer in range(layers - first)]
    kinds = ["full_attention" if each else "sliding_attention" for each in full]
    return {
        **config,
        "moe_intermediate_size": inner,
        "intermediate_size": config.get("prefix_dense_intermediate_size") or inner,
        "layer_types": config.get("layer_types") or kinds,
    }


def cohere2_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a Cohere 2 with experts."""
    dense = dense_first_layers(config)
    forced = config.get("prefix_dense_sliding_window_pattern") == 1
    flags = [
        kind == "sliding_attention" or (forced and layer in dense)
        for layer, kind in enumerate(layer_types(config, 4))
    ]
    shared = config.get("num_shared_experts") or 0
    if shared:
        require(config, "shared_expert_combination_strategy", "sum")
    require(config, "expert_selection_fn", "softmax", "sigmoid")
    by_sigmoid = config.get("expert_selection_fn") == "sigmoid"
    inner = count(config, "moe_intermediate_size")
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=inner,
        routing=Routing(
            count(config, "num_experts_per_tok"),
            sigmoid=by_sigmoid,
            normalized=not by_sigmoid or bool(config.get("norm_topk_prob", True)),
        ),
        dense=dense,
        shared="shared_experts" if shared else None,
        shared_inner=inner * shared,
    )
    traits = _cohere(config, rotary=with_positions(config, flags), mixture=mixture)
    if config.get("rms_norm_eps") is None:
        return traits
    return replace(traits, layer_norm=False, epsilon=number(config, "rms_norm_eps", 1e-5))


def _cohere(config: Mapping[str, Any], **own: Any) -> Traits:
    bias = bool(config.get("attention_bias"))
    shared = common(config, tied=True) | {"epsilon": number(config, "layer_norm_eps", 1e-5)}
    return Traits(
        names=Names(before_mlp=None),
        parallel=True,
        layer_norm=True,
        interleaved=True,
        qkv_bias=bias,
        out_bias=bias,
        logits_scale=number(config, "logit_scale", 0.0625),
        **shared,
        **own,
    )

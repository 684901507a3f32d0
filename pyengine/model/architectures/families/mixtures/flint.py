"""Flint (Recursive, 2026): a Qwen3 with experts chosen by sigmoids, beside one that all tokens go
through, attention sinks, and positions where layers have windows.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.llama_like.qwen3 import qwen3_moe
from pyengine.model.architectures.reading import count, layer_count, layer_types, with_positions
from pyengine.model.architectures.traits import Names, Traits


def flint_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Flint's config.json with the layers that it leaves out."""
    layers = layer_count(config)
    windows = ["sliding_attention"] * layers
    for layer in range(layers):
        if layer < 2 or layer % 4 == 1 or layer == layers - 1:
            windows[layer] = "full_attention"
    only = config.get("mlp_only_layers")
    return {
        **config,
        "layer_types": config.get("layer_types") or windows,
        "mlp_only_layers": [0, 1] if only is None else only,
    }


def flint(config: Mapping[str, Any]) -> Traits:
    """The traits of a Flint."""
    traits = qwen3_moe(config)
    assert traits.mixture is not None
    mixture = replace(
        traits.mixture,
        routing=replace(traits.mixture.routing, sigmoid=True),
        shared="shared_expert",
        shared_inner=count(config, "shared_expert_intermediate_size"),
    )
    positions = with_positions(
        config, (kind == "sliding_attention" for kind in layer_types(config))
    )
    return replace(traits, names=Names(sinks="softmax_offset"), mixture=mixture, rotary=positions)

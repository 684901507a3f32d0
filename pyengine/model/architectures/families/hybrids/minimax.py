"""MiniMax-Text-01 (MiniMax, "MiniMax-01: Scaling Foundation Models with Lightning Attention", 2025)
has lightning attention, some layers that attend, a Mixtral's experts, and hidden states that go on
as each norm leaves them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.mixtures.mixtral import mixtral
from pyengine.model.architectures.mixers.decay_attention import DecayAttention
from pyengine.model.architectures.reading import (
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    number,
    refuse,
    stated,
    whole_heads,
)
from pyengine.model.architectures.traits import NormedResidual, Traits


def minimax_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A MiniMax-Text-01's config.json with the kinds of its layers."""
    kinds = [
        "linear_attention" if at % 2 else "full_attention" for at in range(layer_count(config))
    ]
    return {"layer_types": kinds, **stated(config)}


def minimax(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiniMax-Text-01."""
    refuse(config, "sliding_window")
    kinds = layers_of_kinds(config, "full_attention", "linear_attention")
    traits = mixtral(config)
    heads = count(config, "num_attention_heads")
    dim = config.get("head_dim") or count(config, "hidden_size") // heads
    mixers = tuple(
        DecayAttention(
            heads=heads,
            head_dim=dim,
            rates=_rates(heads, at, len(kinds)),
            activation=traits.activation,
            epsilon=1e-6,
        )
        if kind == "linear_attention"
        else None
        for at, kind in enumerate(kinds)
    )
    return replace(
        traits,
        layers=keys_beside(config, mixers),
        mixers=mixers,
        normed_residual=tuple(_factors(config, kind) for kind in kinds),
        rotary=(whole_heads(config),) * len(kinds),
    )


def _factors(config: Mapping[str, Any], kind: str) -> NormedResidual:
    """The factors of a layer."""
    start = "full_attn" if kind == "full_attention" else "linear_attn"
    names = (f"{start}_alpha", f"{start}_beta", "mlp_alpha", "mlp_beta")
    return NormedResidual(*(number(config, f"{name}_factor", 1.0) for name in names))


def _rates(heads: int, layer: int, layers: int) -> tuple[float, ...]:
    """By which each head's sum fades: slower in deeper layers."""
    depth = 1 - layer / (layers - 1 + 1e-5) + 1e-5
    return tuple(2 ** (-8 * (head + 1) / heads) * depth for head in range(heads))

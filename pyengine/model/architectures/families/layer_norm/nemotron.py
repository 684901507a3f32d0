"""Nemotron 3 and 4 and Minitron (NVIDIA, "Nemotron-4 15B Technical Report", 2024): layer norms
whose weights are stored as what differs from 1, squared ReLU without gates, half of each head
rotated.
Jais 2 (Inception, 2025) has the same layers with plain layer norms and whole heads rotated.
Arcee (Arcee AI, "AFM-4.5B", 2025) has the same feed-forward layer in a Llama.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.reading import activation, common, layer_count, number
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters


def nemotron(config: Mapping[str, Any]) -> Traits:
    """The traits of a Nemotron."""
    attention = bool(config.get("attention_bias"))
    rotary = rotary_parameters({"partial_rotary_factor": 0.5, **config})
    return Traits(
        names=Names(gate_up=("up_proj",)),
        layer_norm=True,
        norm_bias=True,
        norm_offset=1.0,
        gated=False,
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        rotary=(rotary,) * layer_count(config),
        **_shared(config) | {"epsilon": number(config, "norm_eps", 1e-5)},
    )


def jais2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Jais 2."""
    return replace(
        arcee({"attention_bias": True, "mlp_bias": True, **config}),
        layer_norm=True,
        norm_bias=True,
        epsilon=number(config, "layer_norm_eps", 1e-5),
    )


def arcee(config: Mapping[str, Any]) -> Traits:
    """The traits of an Arcee."""
    attention = bool(config.get("attention_bias"))
    return Traits(
        names=Names(gate_up=("up_proj",)),
        gated=False,
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        **_shared(config),
    )


def _shared(config: Mapping[str, Any]) -> dict[str, Any]:
    return common(config, epsilon=1e-5) | {
        "activation": activation(config.get("hidden_act") or "relu2")
    }

"""Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., "Textbooks Are All You Need", 2023): attention and
the feed-forward layer side by side, biases everywhere, the head's too, and a part of each head
rotated.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import activation, common, layer_count, number, refuse
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters


def phi(config: Mapping[str, Any]) -> Traits:
    """The traits of a Phi-1 or Phi-2."""
    refuse(config, "qk_layernorm")
    rotary = rotary_parameters({"partial_rotary_factor": 0.5, **config})
    shared = common(config) | {
        "epsilon": number(config, "layer_norm_eps", 1e-5),
        "activation": activation(config.get("hidden_act") or "gelu_new"),
    }
    return Traits(
        names=Names(
            norm="model.final_layernorm",
            out="dense",
            gate_up=("fc1",),
            down="fc2",
            before_mlp=None,
        ),
        layer_norm=True,
        norm_bias=True,
        gated=False,
        parallel=True,
        head_bias=True,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        rotary=(rotary,) * layer_count(config),
        **shared,
    )

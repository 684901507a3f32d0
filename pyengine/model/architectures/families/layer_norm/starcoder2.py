"""StarCoder2 (Lozhkov et al., "StarCoder 2 and The Stack v2", 2024): layer norms, biases, and a
feed-forward layer without gates.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import activation, common, number
from pyengine.model.architectures.traits import Names, Traits


def starcoder2(config: Mapping[str, Any]) -> Traits:
    """The traits of a StarCoder2."""
    bias = bool(config.get("use_bias", True))
    shared = common(config, tied=True) | {
        "epsilon": number(config, "norm_epsilon", 1e-5),
        "activation": activation(config.get("hidden_act") or "gelu_pytorch_tanh"),
    }
    return Traits(
        names=Names(gate_up=("c_fc",), down="c_proj"),
        layer_norm=True,
        norm_bias=True,
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        **shared,
    )

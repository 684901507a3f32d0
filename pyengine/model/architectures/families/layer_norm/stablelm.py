"""StableLM 2 and StableLM 3B (Bellagente et al., "Stable LM 2 1.6B Technical Report", 2024): layer
norms, and a quarter of each head rotated.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, layer_count, number, refuse
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters


def stablelm(config: Mapping[str, Any]) -> Traits:
    """The traits of a StableLM."""
    refuse(config, "qk_layernorm")
    shared = common(config) | {"epsilon": number(config, "layer_norm_eps", 1e-5)}
    rotary = rotary_parameters({"partial_rotary_factor": 0.25, **config})
    parallel = bool(config.get("use_parallel_residual"))
    return Traits(
        names=Names(before_mlp=None) if parallel else Names(),
        layer_norm=True,
        norm_bias=True,
        parallel=parallel,
        qkv_bias=bool(config.get("use_qkv_bias")),
        rotary=(rotary,) * layer_count(config),
        **shared,
    )

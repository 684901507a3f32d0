"""Command R (Cohere, 2024) and Command A and R7B (Cohere, "Command A", 2025): attention and the
feed-forward layer side by side, layer norms without bias. In the second, only the layers with a
window have positions.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import (
    common,
    layer_types,
    number,
    refuse,
    with_positions,
)
from pyengine.model.architectures.traits import Names, Traits


def cohere(config: Mapping[str, Any]) -> Traits:
    """The traits of a Command R."""
    refuse(config, "use_qk_norm")
    return _cohere(config)


def cohere2(config: Mapping[str, Any]) -> Traits:
    """The traits of a Command A or R7B."""
    flags = [kind == "sliding_attention" for kind in layer_types(config, 4)]
    return _cohere(config, rotary=with_positions(config, flags))


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

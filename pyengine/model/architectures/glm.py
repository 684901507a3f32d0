"""GLM-4, dense (GLM Team, "ChatGLM: A Family of Large Language Models [...]", 2024): pairs of
neighbours are rotated, in the first half of each head; since 2025 with norms on both sides.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.reading import common, layer_count
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters

PLAIN = Names(gate_up=("gate_up_proj",))
NORMS_ON_BOTH_SIDES = replace(
    PLAIN, after_attention="post_self_attn_layernorm", after_mlp="post_mlp_layernorm"
)


def glm(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4 of 2024: ``GlmForCausalLM``."""
    return _glm(config, PLAIN)


def glm4(config: Mapping[str, Any]) -> Traits:
    """The traits of a GLM-4 of 2025: ``Glm4ForCausalLM``."""
    return _glm(config, NORMS_ON_BOTH_SIDES)


def _glm(config: Mapping[str, Any], names: Names) -> Traits:
    rotary = rotary_parameters({"partial_rotary_factor": 0.5, **config})
    return Traits(
        names=names,
        rotary=(rotary,) * layer_count(config),
        interleaved=True,
        qkv_bias=bool(config.get("attention_bias")),
        **common(config, epsilon=1.5625e-7),
    )

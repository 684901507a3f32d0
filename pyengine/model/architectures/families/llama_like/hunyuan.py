"""HunYuan (Tencent Hunyuan Team, "Hunyuan-A13B Technical Report", 2025), dense and with experts: a
Llama whose queries and keys are normalized, head by head, behind their rotation.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import common, count, layer_count, refuse, whole_heads
from pyengine.model.architectures.traits import Mixture, Names, Traits


def hunyuan(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense HunYuan."""
    refuse(config, "use_cla")
    bias = bool(config.get("attention_bias"))
    return Traits(
        names=Names(query_norm="query_layernorm", key_norm="key_layernorm"),
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="head",
        qk_norm_behind=True,
        rotary=(_rotary(config),) * layer_count(config),
        **common(config, epsilon=1e-5),
    )


def hunyuan_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a HunYuan with experts, beside one that all tokens go through."""
    inner = count(config, "intermediate_size")
    mixture = Mixture(
        count=count(config, "num_experts"),
        inner=inner,
        routing=Routing(_alike(config, "moe_topk"), normalized=True),
        router="gate.wg",
        shared="shared_mlp",
        shared_inner=inner,
    )
    return replace(hunyuan(config), mixture=mixture)


def _alike(config: Mapping[str, Any], name: str) -> int:
    """A number that config.json has once, or for each layer.

    Raises:
        ModelLoadError: Layers differ.
    """
    given = config.get(name)
    different = set(given) if isinstance(given, list) else {given}
    if len(different) != 1:
        raise ModelLoadError(
            f"config.json: {name!r} that differs between layers is not supported: {given!r}"
        )
    return count({name: different.pop()}, name)


def _rotary(config: Mapping[str, Any]) -> dict[str, Any]:
    """Their "dynamic" scaling stretches the base by a number that is always the same."""
    rotary = whole_heads(config)
    alpha, dim = rotary.get("alpha"), config.get("head_dim")
    if rotary["rope_type"] != "dynamic" or not alpha:
        return rotary
    dim = dim or config["hidden_size"] // config["num_attention_heads"]
    theta = rotary["rope_theta"] * alpha ** (dim / (dim - 2))
    return {**rotary, "rope_type": "default", "rope_theta": theta}

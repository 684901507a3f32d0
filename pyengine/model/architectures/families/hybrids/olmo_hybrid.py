"""OLMo-Hybrid (OLMo Team, 2026): three layers of Gated DeltaNet, with norms before its blocks, to
one of an OLMo 3 that attends, with norms behind them.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.norms_behind.olmo import olmo2
from pyengine.model.architectures.mixers.gated_delta import DeltaNames, GatedDelta
from pyengine.model.architectures.reading import (
    count,
    keys_beside,
    layer_count,
    layers_of_kinds,
    require,
    stated,
    whole_heads,
)
from pyengine.model.architectures.traits import Names, Traits

DELTA_NAMES = DeltaNames(
    qkv=("q_proj", "k_proj", "v_proj"),
    gates="g_proj",
    b="b_proj",
    a="a_proj",
    convolution=("q_conv1d", "k_conv1d", "v_conv1d"),
    norm="o_norm",
    out="o_proj",
)


def olmo_hybrid_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An OLMo-Hybrid's config.json with what it leaves out."""
    config = stated(config)
    kinds = [
        "linear_attention" if layer % 4 < 3 else "full_attention"
        for layer in range(layer_count(config))
    ]
    if "full_attention" not in kinds:
        kinds[-1] = "full_attention"
    heads = count(config, "num_attention_heads")
    keys = config.get("linear_num_key_heads", heads)
    key_dim = config.get("linear_key_head_dim", int(0.75 * count(config, "hidden_size") / keys))
    return {
        "layer_types": kinds,
        "linear_num_key_heads": keys,
        "linear_num_value_heads": heads,
        "linear_key_head_dim": key_dim,
        "linear_value_head_dim": 2 * key_dim,
        **config,
    }


def olmo_hybrid(config: Mapping[str, Any]) -> Traits:
    """The traits of an OLMo-Hybrid; where ``rope_theta`` is null, it has no positions."""
    require(config, "hidden_act", "silu", "swish")
    mixer = GatedDelta(
        key_heads=count(config, "linear_num_key_heads"),
        value_heads=count(config, "linear_num_value_heads"),
        key_dim=count(config, "linear_key_head_dim"),
        value_dim=count(config, "linear_value_head_dim"),
        kernel=count(config, "linear_conv_kernel_dim"),
        epsilon=1e-5,
        strength=2.0 if config.get("linear_allow_neg_eigval", True) else 1.0,
        names=DELTA_NAMES,
    )
    kinds = layers_of_kinds(config, "full_attention", "linear_attention")
    mixers = tuple(mixer if kind == "linear_attention" else None for kind in kinds)
    given = config.get("rope_parameters") or {}
    rotary = whole_heads(config) if given.get("rope_theta", 0) is not None else None
    return replace(
        olmo2(config),
        layers=keys_beside(config, mixers),
        mixers=mixers,
        mixer_names=Names(),
        rotary=(rotary,) * len(kinds),
    )

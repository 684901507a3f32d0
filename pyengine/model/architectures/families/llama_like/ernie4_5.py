"""ERNIE 4.5 (Baidu, "ERNIE 4.5 Technical Report", 2025): a Llama that rotates pairs of neighbours,
dense or with experts. Helium (Kyutai, 2025) is one, too.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import common, count, layer_count, refuse
from pyengine.model.architectures.traits import Mixture, Traits


def ernie4_5(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense ERNIE 4.5."""
    bias = bool(config.get("use_bias"))
    return Traits(
        interleaved=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        **common(config, tied=True, epsilon=1e-5),
    )


def ernie4_5_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of an ERNIE 4.5 with experts."""
    refuse(config, "use_bias")  # of the head, too
    inner = count(config, "moe_intermediate_size")
    layers, last = layer_count(config), config.get("moe_layer_end_index")
    first, every = config.get("moe_layer_start_index") or 0, config.get("moe_layer_interval") or 1
    last = layers - 1 if last is None or last == -1 else last
    shared = config.get("moe_num_shared_experts") or 0
    mixture = Mixture(
        count=count(config, "moe_num_experts"),
        inner=inner,
        routing=Routing(count(config, "moe_k"), normalized=True),
        dense=frozenset(
            layer for layer in range(layers) if not first <= layer <= last or (layer + 1) % every
        ),
        bias="moe_statics.e_score_correction_bias[0]",
        shared="shared_experts" if shared else None,
        shared_inner=inner * shared,
    )
    return replace(ernie4_5(config), mixture=mixture)


def helium(config: Mapping[str, Any]) -> Traits:
    """The traits of a Helium."""
    return Traits(
        interleaved=True,
        qkv_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        **common(config, epsilon=1e-8),
    )

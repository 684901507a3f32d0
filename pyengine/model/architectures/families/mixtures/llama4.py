"""Llama 4 (Meta, 2025), its text part: most layers attend in chunks and have normalized queries and
keys; every fourth has no positions, and sharper scores the further a query is. Experts get their
inputs weighted, beside one that all tokens go through.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.experts import Routing
from pyengine.model.architectures.reading import (
    common,
    count,
    keys_of_layers,
    layer_count,
    number,
    with_positions,
)
from pyengine.model.architectures.temperatures import Temperatures
from pyengine.model.architectures.traits import (
    ExpertNames,
    Mixture,
    Names,
    Traits,
)


def llama4(config: Mapping[str, Any]) -> Traits:
    """The traits of a Llama 4."""
    layers = range(layer_count(config))
    every = config.get("no_rope_layer_interval") or 4
    # 1 where there are positions.
    turned = config.get("no_rope_layers") or [(layer + 1) % every for layer in layers]
    kinds = config.get("layer_types") or [
        "chunked_attention" if flag else "full_attention" for flag in turned
    ]
    rotary = with_positions(config, (bool(flag) for flag in turned))
    if len(kinds) != len(layers):
        raise ModelLoadError(f"config.json: 'layer_types' must name {len(layers)} layers")
    size = config.get("attention_chunk_size")
    chunks = tuple(size if kind == "chunked_attention" else None for kind in kinds)
    positioned = frozenset(layer for layer in layers if turned[layer])
    sharper = Temperatures(
        number(config, "attn_scale", 0.1), number(config, "floor_scale", 8192), first=1
    )
    if not config.get("attn_temperature_tuning", True):
        temperatures: tuple[Temperatures | None, ...] = ()
    else:
        temperatures = tuple(None if layer in positioned else sharper for layer in layers)
    step = config.get("interleave_moe_layer_step") or 1
    given = config.get("moe_layers")
    experts = range(step - 1, len(layers), step) if given is None else given
    inner, bias = count(config, "intermediate_size"), bool(config.get("attention_bias"))
    return Traits(
        names=Names(mlp="feed_forward."),
        interleaved=True,
        qkv_bias=bias,
        out_bias=bias,
        qk_norm="plain" if config.get("use_qk_norm", True) else None,
        qk_norm_layers=positioned,
        rotary=rotary,
        layers=keys_of_layers(config, chunks, chunked=True),
        temperatures=temperatures,
        inner=(int(config.get("intermediate_size_mlp") or inner),) * len(layers),
        mixture=Mixture(
            count=count(config, "num_local_experts"),
            inner=inner,
            routing=Routing(
                config.get("num_experts_per_tok") or 1, sigmoid=True, weighs_inputs=True
            ),
            dense=frozenset(layers) - frozenset(experts),
            mlp="feed_forward.",
            router="router",
            names=ExpertNames(
                gate_up=("experts.gate_up_proj[{}].T",), down="experts.down_proj[{}].T"
            ),
            shared="shared_expert",
            shared_inner=inner,
        ),
        **common(config, epsilon=1e-5),
    )

"""GPT-NeoX and Pythia (Black et al., "GPT-NeoX-20B", 2022; Biderman et al., "Pythia", 2023):
attention and the feed-forward layer side by side, each with a norm of its own, and a quarter of
each head rotated. A head's queries, keys and values are neighbours in one weight.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import (
    activation,
    common,
    layer_count,
    number,
    renamed,
)
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters

NAMES = Names(
    embedding="gpt_neox.embed_in",
    layer="gpt_neox.layers.{}.",
    norm="gpt_neox.final_layer_norm",
    head="embed_out",
    attention="attention.",
    qkv=("query_key_value",),
    out="dense",
    gate_up=("dense_h_to_4h",),
    down="dense_4h_to_h",
)


def gpt_neox_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A GPT-NeoX's config.json in the usual names; it has as many heads of keys as of queries."""
    usual = renamed(config, rope_theta="rotary_emb_base", partial_rotary_factor="rotary_pct")
    return usual | {"num_key_value_heads": None}


def gpt_neox(config: Mapping[str, Any]) -> Traits:
    """The traits of a GPT-NeoX."""
    bias = bool(config.get("attention_bias", True))
    rotary = rotary_parameters({"partial_rotary_factor": 0.25, **config})
    shared = common(config) | {
        "epsilon": number(config, "layer_norm_eps", 1e-5),
        "activation": activation(config.get("hidden_act") or "gelu"),
    }
    return Traits(
        names=NAMES,
        layer_norm=True,
        norm_bias=True,
        gated=False,
        parallel=bool(config.get("use_parallel_residual", True)),
        qkv_by_head=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=True,
        rotary=(rotary,) * layer_count(config),
        **shared,
    )

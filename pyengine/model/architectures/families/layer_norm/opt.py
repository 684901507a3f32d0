"""OPT (Zhang et al., "OPT: Open Pre-trained Transformer Language Models", 2022), Galactica:
positions are rows of a table, layer norms, and ReLU without gates.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.reading import activation, common, layer_count, refuse, renamed
from pyengine.model.architectures.traits import Names, PositionTable, Traits


def opt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An OPT's config.json in the usual names."""
    usual = renamed(config, intermediate_size="ffn_dim", hidden_act="activation_function")
    return usual | {"num_key_value_heads": None}


def opt(config: Mapping[str, Any]) -> Traits:
    """The traits of an OPT.

    Raises:
        ModelLoadError: Its norms are behind its layers, or embeddings have another width (350M).
    """
    refuse(config, "_remove_final_layer_norm")
    hidden = config.get("hidden_size")
    width = config.get("word_embed_proj_dim") or hidden
    if not config.get("do_layer_norm_before", True) or width != hidden:
        raise ModelLoadError(
            "config.json: an OPT with 'do_layer_norm_before' of false, or with "
            f"'word_embed_proj_dim' of {width} beside 'hidden_size' of {hidden}, is not supported"
        )
    bias = bool(config.get("enable_bias", True))
    affine = bool(config.get("layer_norm_elementwise_affine", True))
    shared = common(config, tied=True) | {
        "epsilon": 1e-5,
        "activation": activation(config.get("hidden_act") or "relu"),
    }
    return Traits(
        names=Names(
            embedding="model.decoder.embed_tokens",
            layer="model.decoder.layers.{}.",
            norm="model.decoder.final_layer_norm",
            out="out_proj",
            mlp="",
            gate_up=("fc1",),
            down="fc2",
            before_attention="self_attn_layer_norm",
            before_mlp="final_layer_norm",
        ),
        layer_norm=True,
        norm_bias=affine,
        norm_weight=affine,
        gated=False,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        position_table=PositionTable("model.decoder.embed_positions", first=2),
        rotary=(None,) * layer_count(config),
        **shared,
    )

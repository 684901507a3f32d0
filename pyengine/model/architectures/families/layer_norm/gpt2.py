"""GPT-2 (Radford et al., "Language Models are Unsupervised Multitask Learners", 2019): positions
are rows of a table, layer norms, biases, and a feed-forward layer without gates; files have weights
by inputs. StarCoder 1 and SantaCoder (Li et al., "StarCoder: may the source be with you!", 2023)
share one head of keys and values. GPT-Neo (Black et al., 2021) has a window in every other layer,
and does not scale scores. GPT-J (Wang and Komatsuzaki, 2021) has blocks side by side, rotates pairs
of neighbours in a part of each head, and has no table.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.reading import (
    activation,
    common,
    keys_of_layers,
    layer_count,
    number,
    refuse,
    renamed,
)
from pyengine.model.architectures.traits import Names, PositionTable, Traits
from pyengine.model.positions import rotary_parameters

NAMES = Names(
    embedding="transformer.wte",
    layer="transformer.h.{}.",
    norm="transformer.ln_f",
    attention="attn.",
    qkv=("c_attn",),
    out="c_proj",
    gate_up=("c_fc",),
    down="c_proj",
    before_attention="ln_1",
    before_mlp="ln_2",
)
APART = ("q_proj", "k_proj", "v_proj")


def gpt2_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A GPT-2's config.json in the usual names."""
    usual = renamed(
        config,
        hidden_size="n_embd",
        num_hidden_layers="n_layer",
        num_attention_heads="n_head",
        max_position_embeddings="n_positions",
        hidden_act="activation_function",
    )
    heads = 1 if config.get("multi_query") else None
    inner = config.get("n_inner") or 4 * int(usual.get("hidden_size") or 0)
    return usual | {"num_key_value_heads": heads, "intermediate_size": inner}


def gpt_neo_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A GPT-Neo's config.json in the usual names."""
    kinds = config.get("attention_layers")
    if kinds is None:
        kinds = [kind for group, times in config["attention_types"] for kind in group * times]
    windows = {"global": "full_attention", "local": "sliding_attention"}
    usual = gpt2_config(
        renamed(
            config,
            num_hidden_layers="num_layers",
            num_attention_heads="num_heads",
            n_inner="intermediate_size",
            sliding_window="window_size",
        )
    )
    return usual | {"layer_types": [windows.get(kind, kind) for kind in kinds]}


def gpt2(config: Mapping[str, Any]) -> Traits:
    """The traits of a GPT-2."""
    refuse(config, "scale_attn_by_inverse_layer_idx", "add_cross_attention")
    return _gpt(config, replace(NAMES, transposed=True))


def gpt_bigcode(config: Mapping[str, Any]) -> Traits:
    """The traits of a StarCoder 1."""
    refuse(config, "add_cross_attention")
    return replace(_gpt(config, NAMES), qkv_by_head=not config.get("multi_query", True))


def gpt_neo(config: Mapping[str, Any]) -> Traits:
    """The traits of a GPT-Neo."""
    names = replace(NAMES, attention="attn.attention.", qkv=APART, out="out_proj")
    return replace(_gpt(config, names), qkv_bias=False, attention_scale=1.0)


def gptj(config: Mapping[str, Any]) -> Traits:
    """The traits of a GPT-J.

    Raises:
        ModelLoadError: It does not say how much of a head is rotated.
    """
    names = replace(
        NAMES, qkv=APART, out="out_proj", gate_up=("fc_in",), down="fc_out", before_mlp=None
    )
    if not config.get("rotary_dim"):
        raise ModelLoadError("config.json: 'rotary_dim' must be there, the rotated part of a head")
    dim = keys_of_layers(config)[0].head_dim
    rotary = rotary_parameters({"partial_rotary_factor": config["rotary_dim"] / dim})
    return replace(
        _gpt(config, names, tied=False),
        head_bias=True,
        qkv_bias=False,
        out_bias=False,
        parallel=True,
        interleaved=True,
        position_table=None,
        rotary=(rotary,) * layer_count(config),
    )


def _gpt(config: Mapping[str, Any], names: Names, *, tied: bool = True) -> Traits:
    shared = common(config, tied=tied) | {
        "epsilon": number(config, "layer_norm_epsilon", 1e-5),
        "activation": activation(config.get("hidden_act") or "gelu_new"),
    }
    return Traits(
        names=names,
        layer_norm=True,
        norm_bias=True,
        gated=False,
        qkv_bias=True,
        out_bias=True,
        mlp_bias=True,
        position_table=PositionTable("transformer.wpe"),
        rotary=(None,) * layer_count(config),
        attention_scale=None if config.get("scale_attn_weights", True) else 1.0,
        **shared,
    )

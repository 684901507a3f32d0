"""Falcon of 2023 (Almazrouei et al., "The Falcon Series of Open Language Models", 2023) and
Falcon 2: attention and the feed-forward layer side by side, of one norm or of two, and queries,
keys and values in one weight. Falcon 3 is a Llama.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import activation, common, number, refuse, renamed
from pyengine.model.architectures.traits import Names, Traits


def falcon_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A Falcon's config.json in the usual names."""
    usual = renamed(
        config,
        intermediate_size="ffn_hidden_size",
        num_key_value_heads="num_kv_heads",
        hidden_act="activation",
    )
    if not config.get("new_decoder_architecture"):
        # What num_kv_heads says is not read.
        one = config.get("multi_query", True)
        usual["num_key_value_heads"] = 1 if one else config.get("num_attention_heads")
    return {"intermediate_size": 4 * int(config.get("hidden_size") or 0)} | usual


def falcon(config: Mapping[str, Any]) -> Traits:
    """The traits of a Falcon."""
    refuse(config, "alibi")
    bias = bool(config.get("bias"))
    new = bool(config.get("new_decoder_architecture"))
    parallel = new or bool(config.get("parallel_attn", True))
    first, second = "input_layernorm", None if parallel else "post_attention_layernorm"
    if new and config.get("num_ln_in_parallel_attn") in (None, 2):
        first, second = "ln_attn", "ln_mlp"
    shared = common(config, tied=True) | {
        "epsilon": number(config, "layer_norm_epsilon", 1e-5),
        "activation": activation(config.get("hidden_act") or "gelu"),
    }
    return Traits(
        names=Names(
            embedding="transformer.word_embeddings",
            layer="transformer.h.{}.",
            norm="transformer.ln_f",
            attention="self_attention.",
            qkv=("query_key_value",),
            out="dense",
            gate_up=("dense_h_to_4h",),
            down="dense_4h_to_h",
            before_attention=first,
            before_mlp=second,
        ),
        layer_norm=True,
        norm_bias=True,
        gated=False,
        parallel=parallel,
        qkv_by_head=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        **shared,
    )

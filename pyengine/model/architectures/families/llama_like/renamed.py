"""Llamas whose files have other names: InternLM 2 and 3, IQuest-Coder, Xverse, Orion, EXAONE 3 and
MiniCPM, which is a Granite; MiMo is a Qwen2 with layers that draft, which are not read.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.llama_like.granite import granite
from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.families.llama_like.qwen2 import qwen2
from pyengine.model.architectures.reading import count, number, refuse, renamed
from pyengine.model.architectures.traits import Names, Traits

INTERNLM2 = Names(
    embedding="model.tok_embeddings",
    head="output",
    attention="attention.",
    qkv=("wqkv",),
    out="wo",
    mlp="feed_forward.",
    gate_up=("w1", "w3"),
    down="w2",
    before_attention="attention_norm",
    before_mlp="ffn_norm",
)
EXAONE = Names(
    embedding="transformer.wte",
    layer="transformer.h.{}.",
    norm="transformer.ln_f",
    attention="attn.attention.",
    out="out_proj",
    gate_up=("c_fc_0", "c_fc_1"),
    down="c_proj",
    before_attention="ln_1",
    before_mlp="ln_2",
)


def internlm2(config: Mapping[str, Any]) -> Traits:
    """The traits of an InternLM 2 or 2.5 (Cai et al., "InternLM2 Technical Report", 2024): queries
    stand beside the keys and values that they read.
    """
    bias = bool(config.get("bias"))
    return replace(llama(config), names=INTERNLM2, qkv_by_head=True, qkv_bias=bias, out_bias=bias)


def internlm3_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An InternLM 3's config.json in the usual names."""
    return renamed(config, attention_bias="qkv_bias", mlp_bias="bias")


def exaone_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """An EXAONE 3's config.json in the usual names."""
    return renamed(
        config,
        num_hidden_layers="num_layers",
        hidden_act="activation_function",
        rms_norm_eps="layer_norm_epsilon",
    )


def exaone(config: Mapping[str, Any]) -> Traits:
    """The traits of an EXAONE 3 or 3.5 (LG AI Research, 2024)."""
    return replace(llama(config), names=EXAONE)


def orion(config: Mapping[str, Any]) -> Traits:
    """The traits of an Orion (OrionStar, 2024): a Llama with layer norms."""
    refuse(config, "attention_bias")
    return replace(llama(config), layer_norm=True, norm_bias=True)


def minicpm(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiniCPM 1, 2 or 4 (Hu et al., "MiniCPM", 2024), dense."""
    refuse(config, "num_experts", "sparse_config")
    layers, hidden = count(config, "num_hidden_layers"), count(config, "hidden_size")
    return granite(
        {
            **config,
            "embedding_multiplier": number(config, "scale_emb", 1.0),
            "residual_multiplier": number(config, "scale_depth", 1.0) / math.sqrt(layers),
            "logits_scaling": hidden / number(config, "dim_model_base", hidden),
        }
    )


def mimo(config: Mapping[str, Any]) -> Traits:
    """The traits of a MiMo-7B (Xiaomi, "MiMo", 2025)."""
    return qwen2({**config, "attention_bias": False})

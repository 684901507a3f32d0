"""Llama-Nemotron (NVIDIA, "Llama-Nemotron: Efficient Reasoning Models", 2025), which its files call
DeciLM: a Llama whose layers a search has made narrower, each in its own way, or left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.llama_like.llama import llama
from pyengine.model.architectures.reading import count, keys_of_layers, number, refuse
from pyengine.model.architectures.traits import Traits
from pyengine.model.cache_layers import CacheLayer, Nothing

PARTS = "attention", "ffn"
MULTIPLE = 256
"""Widths of feed-forward layers are multiples of it."""


def deci(config: Mapping[str, Any]) -> Traits:
    """The traits of a Llama-Nemotron Super or Ultra.

    Raises:
        ModelLoadError: config.json does not say what the layers are, or they are no Llama's.
    """
    blocks = config.get("block_configs")
    if (
        not isinstance(blocks, list)
        or len(blocks) != count(config, "num_hidden_layers")
        or not all(isinstance(each.get(part), Mapping) for each in blocks for part in PARTS)
    ):
        raise ModelLoadError("config.json: 'block_configs' must say what each layer is")
    heads, hidden = count(config, "num_attention_heads"), count(config, "hidden_size")
    (keys, *_) = keys_of_layers({**config, "num_key_value_heads": None}, [None] * len(blocks))
    layers: list[CacheLayer] = []
    lone: list[Literal["mixes", "feeds"] | None] = []
    inner: list[int] = []
    for block in blocks:
        attention, feed = block["attention"], block["ffn"]
        for part in (attention, feed):
            refuse(part, "replace_with_linear", "sparsify", "unshifted_sink", "window_length")
        if attention.get("no_op") and feed.get("no_op"):
            raise ModelLoadError("config.json: a layer of 'block_configs' has no block at all")
        lone.append("feeds" if attention.get("no_op") else "mixes" if feed.get("no_op") else None)
        width = int(2 * number(feed, "ffn_mult", 0.0) * hidden / 3)
        inner.append(-(-width // MULTIPLE) * MULTIPLE)
        own = Nothing() if lone[-1] == "feeds" else None
        groups = 1 if own else count(attention, "n_heads_in_group")
        layers.append(own or replace(keys, kv_heads=heads // groups))
    return replace(llama(config), layers=tuple(layers), lone=tuple(lone), inner=tuple(inner))

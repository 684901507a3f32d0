"""SmolLM3 (Hugging Face, 2025): a Llama of which every fourth layer has no positions (Yang et al.,
"Rope to Nope and Back Again", 2025).
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, layer_count, with_positions
from pyengine.model.architectures.traits import Traits


def smollm3(config: Mapping[str, Any]) -> Traits:
    """The traits of a SmolLM3."""
    attention = bool(config.get("attention_bias"))
    flags = config.get("no_rope_layers")  # 1 where there are positions
    if flags is None:
        every = config.get("no_rope_layer_interval", 4)
        flags = [(layer + 1) % every for layer in range(layer_count(config))]
    return Traits(
        qkv_bias=attention,
        out_bias=attention,
        mlp_bias=bool(config.get("mlp_bias")),
        rotary=with_positions(config, (bool(flag) for flag in flags)),
        **common(config, tied=True),
    )

"""Phi-3, Phi-4 and Phi-4-mini (Abdin et al., "Phi-3 Technical Report", 2024): a Llama with one
weight for queries, keys and values, and one for gates and ups.

Those with a context of 128k have LongRoPE, and Phi-4-mini rotates a part of each head.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.reading import common, layer_count, refuse
from pyengine.model.architectures.traits import Names, Traits
from pyengine.model.positions import rotary_parameters


def phi3(config: Mapping[str, Any]) -> Traits:
    """The traits of a Phi-3."""
    refuse(config, "attention_bias", "mlp_bias")
    rotary = rotary_parameters(config)
    # Older files call LongRoPE "su" and "yarn"; only its factors tell.
    if rotary["rope_type"] in ("su", "yarn") and "long_factor" in rotary:
        rotary["rope_type"] = "longrope"
    if rotary["rope_type"] not in ("default", "longrope"):
        raise ModelLoadError(f"rotary scaling {rotary['rope_type']!r} is not supported for Phi-3")
    trained = config.get("original_max_position_embeddings")
    if trained and not rotary.get("original_max_position_embeddings"):
        rotary["original_max_position_embeddings"] = trained
    return Traits(
        names=Names(qkv=("qkv_proj",), gate_up=("gate_up_proj",)),
        rotary=(rotary,) * layer_count(config),
        **common(config, epsilon=1e-5),
    )

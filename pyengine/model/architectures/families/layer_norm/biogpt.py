"""BioGPT (Luo et al., "BioGPT", 2022): an OPT with scaled embeddings and GELU."""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.layer_norm.opt import opt
from pyengine.model.architectures.reading import count
from pyengine.model.architectures.traits import PositionTable, Traits


def biogpt_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """A BioGPT's config.json, whose heads all have keys and values of their own."""
    usual = {"num_key_value_heads": None, "hidden_act": config.get("hidden_act") or "gelu"}
    return {**config, **usual}


def biogpt(config: Mapping[str, Any]) -> Traits:
    """The traits of a BioGPT."""
    traits = opt(config)
    scaled = bool(config.get("scale_embedding", True))
    return replace(
        traits,
        names=replace(
            traits.names,
            embedding="biogpt.embed_tokens",
            layer="biogpt.layers.{}.",
            norm="biogpt.layer_norm",
            head="output_projection",
        ),
        position_table=PositionTable("biogpt.embed_positions", first=2),
        embedding_scale=math.sqrt(count(config, "hidden_size")) if scaled else 1.0,
    )

"""Mistral (Jiang et al., "Mistral 7B", 2023), Ministral, Mistral Small: a Llama without biases.

Ministral 3 (Mistral AI, 2025) has sharper scores beyond the context of training.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, layer_count, number, refuse
from pyengine.model.architectures.temperatures import Temperatures
from pyengine.model.architectures.traits import Traits
from pyengine.model.positions import rotary_parameters

SHARPER = "llama_4_scaling_beta"
"""How much the scores of a query grow with its position, in the rotary parameters."""


def mistral(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mistral."""
    refuse(config, "attention_bias", "mlp_bias")
    refuse(rotary_parameters(config), SHARPER)
    return Traits(**common(config))


def ministral3(config: Mapping[str, Any]) -> Traits:
    """The traits of a Ministral 3, and of what is a Mistral otherwise: a Mistral Small 3."""
    refuse(config, "attention_bias", "mlp_bias")
    rotary = rotary_parameters(config)
    temperatures: tuple[Temperatures, ...] = ()
    if rotary.get(SHARPER):
        trained = number(
            rotary, "original_max_position_embeddings", config["max_position_embeddings"]
        )
        sharper = Temperatures(number(rotary, SHARPER, 0.0), trained)
        temperatures = (sharper,) * layer_count(config)
    return Traits(temperatures=temperatures, **common(config))

"""Mistral (Jiang et al., "Mistral 7B", 2023), Ministral, Mistral Small: a Llama without biases."""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, refuse
from pyengine.model.architectures.traits import Traits


def mistral(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mistral."""
    refuse(config, "attention_bias", "mlp_bias")
    return Traits(**common(config))

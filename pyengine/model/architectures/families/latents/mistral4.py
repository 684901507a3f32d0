"""Mistral Small 4 (Mistral AI, 2026): DeepSeek-V3's attention and experts, these chosen by a
softmax; and queries that are sharper beyond the context of training.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.architectures.families.latents.deepseek import (
    attends_to_latents,
    deepseek_v3,
    latent_attention,
)
from pyengine.model.architectures.families.llama_like.mistral import SHARPER, ministral3
from pyengine.model.architectures.reading import layer_count, number
from pyengine.model.architectures.temperatures import Temperatures
from pyengine.model.architectures.traits import Traits
from pyengine.model.positions import rotary_parameters


def mistral4(config: Mapping[str, Any]) -> Traits:
    """The traits of a Mistral Small 4.

    Raises:
        ModelLoadError: Another part of heads is to be rotated than ``qk_rope_head_dim``.
    """
    attention, rotary = latent_attention(config), rotary_parameters(config)
    part = rotary["partial_rotary_factor"]
    if int((attention.plain + attention.rotated) * part) != attention.rotated:
        raise ModelLoadError(
            f"'partial_rotary_factor' of {part!r} is not supported where 'qk_rope_head_dim' is "
            f"{attention.rotated} of {attention.plain + attention.rotated}"
        )
    if rotary.get(SHARPER):
        every = number(rotary, "original_max_position_embeddings", 0)
        sharper = Temperatures(number(rotary, SHARPER, 0.0), every)
        attention = replace(attention, temperatures=sharper)
    traits = deepseek_v3({**config, "partial_rotary_factor": 1.0})
    assert traits.mixture is not None
    routing = replace(traits.mixture.routing, sigmoid=False)
    return replace(
        traits,
        mixture=replace(traits.mixture, routing=routing, bias=None),
        rotary=(rotary | {"partial_rotary_factor": 1.0},) * layer_count(config),
        **attends_to_latents(config, attention),
    )


def mistral3(config: Mapping[str, Any]) -> Traits:
    """The traits of the text part of a Mistral Small 3 or 4, or a Ministral 3."""
    return (mistral4 if config.get("model_type") == "mistral4" else ministral3)(config)

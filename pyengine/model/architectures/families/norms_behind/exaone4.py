"""EXAONE 4 (LG AI Research, "EXAONE 4.0", 2025): norms behind attention and feed-forward layers and
of each head; with windows, only the layers that have them have positions. K-EXAONE (2026) has
experts as GLM-4.5 has them, and norms before its blocks.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pyengine.model.architectures.families.norms_behind.glm import glm4_moe
from pyengine.model.architectures.reading import (
    common,
    dense_first_layers,
    layer_count,
    layer_types,
    with_positions,
)
from pyengine.model.architectures.traits import NORMS_AFTER, Names, Traits


def exaone4(config: Mapping[str, Any]) -> Traits:
    """The traits of an EXAONE 4."""
    flags = [True] * layer_count(config)
    if config.get("sliding_window") is not None:
        flags = [kind == "sliding_attention" for kind in layer_types(config, 4)]
    return Traits(
        names=NORMS_AFTER,
        qk_norm="head",
        rotary=with_positions(config, flags),
        **common(config, epsilon=1e-5),
    )


def exaone_moe(config: Mapping[str, Any]) -> Traits:
    """The traits of a K-EXAONE."""
    shared = config.get("num_shared_experts") or 0
    glm = glm4_moe(
        {**config, "n_routed_experts": config.get("num_experts"), "n_shared_experts": shared}
    )
    assert glm.mixture is not None
    mixture = replace(
        glm.mixture, dense=dense_first_layers(config, 1), bias="e_score_correction_bias"
    )
    return replace(exaone4(config), names=Names(), mixture=mixture)

"""EXAONE 4 (LG AI Research, "EXAONE 4.0", 2025): norms behind attention and feed-forward layers and
of each head; with windows, only the layers that have them have positions.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common, layer_count, layer_types, with_positions
from pyengine.model.architectures.traits import NORMS_AFTER, Traits


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

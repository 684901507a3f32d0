"""ERNIE 4.5, dense (Baidu, "ERNIE 4.5 Technical Report", 2025): a Llama that rotates pairs of
neighbours. Helium (Kyutai, 2025) is one, too.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common
from pyengine.model.architectures.traits import Traits


def ernie4_5(config: Mapping[str, Any]) -> Traits:
    """The traits of a dense ERNIE 4.5."""
    bias = bool(config.get("use_bias"))
    return Traits(
        interleaved=True,
        qkv_bias=bias,
        out_bias=bias,
        mlp_bias=bias,
        **common(config, tied=True, epsilon=1e-5),
    )


def helium(config: Mapping[str, Any]) -> Traits:
    """The traits of a Helium."""
    return Traits(
        interleaved=True,
        qkv_bias=bool(config.get("attention_bias")),
        mlp_bias=bool(config.get("mlp_bias")),
        **common(config, epsilon=1e-8),
    )

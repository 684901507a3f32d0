"""Checks of the numbers in a config.json, before anything is made of them. Imports no torch."""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError

# No model comes near these; what is beyond is a broken file.
LARGEST = {
    "hidden_size": 1 << 20,
    "intermediate_size": 1 << 22,
    "num_hidden_layers": 10_000,
    "num_attention_heads": 1 << 14,
    "num_key_value_heads": 1 << 14,
    "head_dim": 1 << 16,
    "vocab_size": 1 << 25,
    "max_position_embeddings": 1 << 31,
}
_POSITIVE = ("rope_theta", "rms_norm_eps", "partial_rotary_factor", "factor")
_ROTARY = ("rope_scaling", "rope_parameters")


def check_numbers(config: Mapping[str, Any], path: Path) -> None:
    """Refuse numbers that no model has.

    Args:
        config: The content of ``path``.
        path: A config.json, for the message.

    Raises:
        ModelLoadError: Naming the first such number.
    """
    for name, most in LARGEST.items():
        value = config.get(name)
        if isinstance(value, int) and value > most:
            raise ModelLoadError(f"{path}: {name!r} of {value} is more than any model has ({most})")
    for name, value in _numbers(config):
        last = name.rpartition(".")[2]
        if not math.isfinite(value) or (last in _POSITIVE and value <= 0):
            raise ModelLoadError(f"{path}: {name!r} must be a finite number above 0, not {value}")


def _numbers(config: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    """The numbers that rotary embeddings and norms are computed with, by their names."""
    for name in _POSITIVE:
        if _is_number(config.get(name)):
            yield name, config[name]
    for group in _ROTARY:
        for name, value in (config.get(group) or {}).items():
            for each in value if isinstance(value, list) else [value]:
                if _is_number(each):
                    yield f"{group}.{name}", each


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)

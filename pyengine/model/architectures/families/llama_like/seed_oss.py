"""Seed-OSS (ByteDance Seed, 2025): a Llama with a bias for each kind of projection, or without."""

from collections.abc import Mapping
from typing import Any

from pyengine.model.architectures.reading import common
from pyengine.model.architectures.traits import Traits


def seed_oss(config: Mapping[str, Any]) -> Traits:
    """The traits of a Seed-OSS."""
    return Traits(
        qkv_bias=bool(config.get("attention_bias", True)),
        out_bias=bool(config.get("attention_out_bias", False)),
        mlp_bias=bool(config.get("mlp_bias", False)),
        **common(config),
    )

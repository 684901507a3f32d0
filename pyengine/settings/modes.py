"""Presets of limits: what a step and the KV cache have room for, unless a setting says it."""

from dataclasses import dataclass
from typing import Literal

Mode = Literal["interactive", "local", "server"]


@dataclass(frozen=True)
class Limits:
    """The limits of a mode: sequences and tokens in one step, memory of the KV cache in MiB.

    A GPU's KV cache does not go by the mode: it gets what weights and workspaces leave.
    """

    max_sequences: int
    max_tokens_per_step: int
    kv_cache_mib: int


LARGE_GPU_BYTES = 64 << 30
"""A GPU with more memory is large: a model of 8B parameters leaves it a cache of 500,000 tokens."""

ON_LARGE_GPUS: dict[Mode, Limits] = {
    "server": Limits(max_sequences=1024, max_tokens_per_step=8192, kv_cache_mib=1024),
}
"""Presets that are others on a large GPU."""

MODES: dict[Mode, Limits] = {
    "interactive": Limits(max_sequences=1, max_tokens_per_step=512, kv_cache_mib=64),
    "local": Limits(max_sequences=16, max_tokens_per_step=1024, kv_cache_mib=256),
    "server": Limits(max_sequences=256, max_tokens_per_step=2048, kv_cache_mib=1024),
}

"""One frozen configuration for the whole engine, and the only reader of the environment."""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal

from pyengine.errors import ConfigError

Mode = Literal["interactive", "local", "server"]
Device = Literal["cpu", "simulated"]
Dtype = Literal["auto", "float32", "bfloat16"]

# What a mode means: how many sequences run at once, how many tokens a step takes, and how much
# memory the KV cache gets.
MODES: dict[Mode, dict[str, int]] = {
    "interactive": {"max_sequences": 1, "max_tokens_per_step": 512, "kv_cache_mib": 64},
    "local": {"max_sequences": 16, "max_tokens_per_step": 1024, "kv_cache_mib": 256},
    "server": {"max_sequences": 256, "max_tokens_per_step": 2048, "kv_cache_mib": 1024},
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine is built from. Immutable; ``None`` is filled in by :meth:`resolve`.

    Attributes:
        model: Folder in Hugging Face format, or a hub name; None is the demo model in the package.
        served_name: Name the model answers to; None takes the folder's or hub's.
        mode: Preset for the three limits below: interactive (1 sequence), local (16), server (256).
        device: ``cpu``, or ``simulated`` (takes ``simulated_step_ms`` per step, needs no weights).
        dtype: Of weights and KV cache; ``auto`` is float32 on the CPU.
        max_sequences: Most sequences in one step.
        max_tokens_per_step: Most tokens in one step, prefill and decode together.
        max_context: Longest prompt and answer together; None takes the model's.
        max_waiting: Most requests that wait; one more is refused as overloaded.
        prefill_chunk: Most prompt tokens of one sequence in one step; None is the whole budget.
        block_size: Tokens in a KV block.
        num_blocks: KV blocks; None takes what ``kv_cache_mib`` holds.
        kv_cache_mib: Memory of the KV cache in MiB.
        prefix_cache: Share the KV blocks of equal prompt prefixes.
        threads: CPU threads of a model step; None takes the machine's cores.
        simulated_step_ms: Milliseconds that a step of the simulated device takes.
    """

    model: str | None = None
    served_name: str | None = None
    mode: Mode = "local"
    device: Device = "cpu"
    dtype: Dtype = "auto"
    max_sequences: int | None = None
    max_tokens_per_step: int | None = None
    max_context: int | None = None
    max_waiting: int = 4096
    prefill_chunk: int | None = None
    block_size: int = 16
    num_blocks: int | None = None
    kv_cache_mib: int | None = None
    prefix_cache: bool = True
    threads: int | None = None
    simulated_step_ms: float = 8.0

"""The settings of an engine as keywords, for type checkers.

``python -m tools.docs.settings`` writes this file. :class:`EngineConfig` declares the settings with
their meanings and defaults.
"""

from collections.abc import Sequence
from typing import TypedDict

from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.settings.choices import (
    AttentionName,
    ChatFormatName,
    Device,
    Dtype,
    GenerationConfigUse,
    KvCacheDtype,
    LoadFormat,
    Proposer,
    Quantization,
    SpecialTokensInContent,
)
from pyengine.settings.modes import Mode


class EngineSettings(TypedDict, total=False):
    """The keywords of an engine beside its model."""

    load_format: LoadFormat
    served_name: tuple[str, ...]
    chat_format: ChatFormatName | None
    special_tokens_in_content: SpecialTokensInContent
    template_timeout_s: float
    max_template_characters: int
    generation_config: GenerationConfigUse
    mode: Mode
    device: Device
    dtype: Dtype
    quantization: Quantization | None
    max_sequences: int | None
    max_tokens_per_step: int | None
    kv_cache_mib: int | None
    kv_cache_dtype: KvCacheDtype
    num_blocks: int | None
    block_size: int
    max_context: int | None
    max_waiting: int
    prefill_chunk: int | None
    prefill_beside_decodes: int | None
    prefix_cache: bool
    snapshot_interval: int | None
    attention: AttentionName
    gpu_memory_fraction: float | None
    graph_memory_mib: int | None
    tensor_parallel: int
    expert_parallel: bool
    threads: int | None
    speculation: tuple[Proposer, ...] | None
    draft_model: str | None
    max_draft: int
    step_timeout_s: float
    nvtx: bool
    grammar_timeout_s: float
    grammar_cache_mib: int
    simulated_step_ms: float
    simulated_step_model: str | None
    simulated_acceptance: float
    simulated_draft_ms: float
    logits_processors: Sequence[str | LogitsProcessor | Call]
    adapter: tuple[str, ...]
    adapter_memory_mib: int
    _adaptive_drafts: bool

"""One frozen configuration for the whole engine, and the only reader of the environment."""

import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, Self, get_args

import msgspec

from pyengine.errors import ConfigError

Mode = Literal["interactive", "local", "server"]
Device = Literal["auto", "cpu", "cuda", "simulated"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
KvCacheDtype = Literal["auto", "bfloat16", "float16", "float8_e4m3"]
AttentionName = Literal["auto", "flashinfer", "triton", "torch"]
LoadFormat = Literal["auto", "dummy"]
Proposer = Literal["forced", "prediction", "ngram", "suffix", "draft_model"]

ENVIRONMENT_PREFIX = "PYENGINE_"
MAX_DRAFT = 64


@dataclass(frozen=True)
class Limits:
    """What a mode presets: sequences and tokens in one step, memory of the KV cache in MiB.

    A GPU's KV cache does not go by the mode: it gets what weights and workspaces leave.
    """

    max_sequences: int
    max_tokens_per_step: int
    kv_cache_mib: int


MODES: dict[Mode, Limits] = {
    "interactive": Limits(max_sequences=1, max_tokens_per_step=512, kv_cache_mib=64),
    "local": Limits(max_sequences=16, max_tokens_per_step=1024, kv_cache_mib=256),
    "server": Limits(max_sequences=256, max_tokens_per_step=2048, kv_cache_mib=1024),
}


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """What an engine is built from. Immutable.

    The three limits that are None come from ``mode``; the other Nones from the model or the
    machine, when the engine starts.

    Attributes:
        model: Folder in Hugging Face format, or a hub name; None is the demo model of the package.
        load_format: ``auto`` reads the model's weights; ``dummy`` makes them up, at random, for
            measuring: a folder needs none then, and ``model`` may also be ``llama-3-8b`` or
            ``llama-3-70b``, the shapes of those models with the demo model's tokenizer.
        served_name: Name that the model answers to; None takes the folder's or the hub's.
        chat_format: How the model marks tool calls and reasoning, by the names of
            ``pyengine.chat.formats.FORMATS``; ``none`` leaves its answers as they are. None takes
            what its chat template tells.
        mode: Preset of limits: interactive (1 sequence), local (16) or server (256).
        device: ``cpu``, ``cuda``, or ``simulated``: a device that takes ``simulated_step_ms`` for a
            step and needs no weights. ``auto`` is ``cuda`` where torch sees a GPU, else ``cpu``.
        dtype: Of weights and computation; ``auto`` is float32 on the CPU and bfloat16 on a GPU.
        max_sequences: Most sequences in one step.
        max_tokens_per_step: Most tokens in one step, prefill and decode together.
        kv_cache_mib: Memory of the KV cache in MiB, unless ``num_blocks`` says it in blocks; None
            takes the mode's on the CPU, and on a GPU what ``gpu_memory_fraction`` leaves for it.
        kv_cache_dtype: Of the KV cache on a GPU, ``float8_e4m3`` with a scale of 1; ``auto`` is
            ``dtype``, and the CPU has no other.
        num_blocks: Blocks of the KV cache; None takes what ``kv_cache_mib`` holds.
        block_size: Tokens in a block.
        max_context: Longest prompt and answer together; None takes the model's.
        max_waiting: Most requests that wait; one more is refused as overloaded.
        prefill_chunk: Most prompt tokens of one sequence in one step; None is the whole budget.
        prefix_cache: Share the blocks of equal prompt prefixes.
        attention: What computes attention on a GPU; ``auto`` takes the best that the machine has.
        gpu_memory_fraction: Share of a GPU's memory that the engine may take; None is 0.9.
        graph_memory_mib: Memory of CUDA graphs in MiB, the least recently used given up; 0 is no
            graphs, None is 1024.
        tensor_parallel: GPUs that share the model, each with a part of every layer and a process
            of its own; on the CPU, processes. Its KV heads must be divisible by it.
        threads: CPU threads of a model step; None takes the machine's cores, one for a tiny model.
        speculation: Who drafts tokens ahead: ``forced`` (text that a grammar leaves no choice in),
            ``prediction`` (what the client expects), ``ngram`` (what followed the same words
            before), ``suffix`` (the same, over recent answers of the tenant too), ``draft_model``.
            No token changes by it, and drafts stop where they do not pay. None takes all but
            ``suffix``, and ``draft_model`` where there is one; on the simulated device nobody, as
            it says words at random.
        draft_model: Folder or hub name of a small model with the same tokens; ``demo`` is the demo
            model's sibling in the package. Its keys and values share ``kv_cache_mib``.
        max_draft: Most draft tokens of one sequence in a step; 0 is no speculation.
        speculation_adaptive: Draft as much as measured time and acceptance say, down to nothing;
            False, which tests use, drafts always as much as possible, at whatever cost.
        speculation_history: Tokens of recent answers that ``suffix`` remembers, all tenants
            together.
        grammar_timeout_s: Seconds that a grammar may take to compile.
        grammar_cache_mib: Memory of compiled grammars that are kept.
        simulated_step_ms: Milliseconds that a step of the simulated device takes.

    Raises:
        ConfigError: A value is out of its range; the message names it.
    """

    model: str | None = None
    load_format: LoadFormat = "auto"
    served_name: str | None = None
    chat_format: str | None = None
    mode: Mode = "local"
    device: Device = "auto"
    dtype: Dtype = "auto"
    max_sequences: int | None = None
    max_tokens_per_step: int | None = None
    kv_cache_mib: int | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    num_blocks: int | None = None
    block_size: int = 16
    max_context: int | None = None
    max_waiting: int = 4096
    prefill_chunk: int | None = None
    prefix_cache: bool = True
    attention: AttentionName = "auto"
    gpu_memory_fraction: float | None = None
    graph_memory_mib: int | None = None
    tensor_parallel: int = 1
    threads: int | None = None
    speculation: tuple[Proposer, ...] | None = None
    draft_model: str | None = None
    max_draft: int = 8
    speculation_adaptive: bool = True
    speculation_history: int = 1_000_000
    grammar_timeout_s: float = 5.0
    grammar_cache_mib: int = 256
    simulated_step_ms: float = 8.0

    def __post_init__(self) -> None:
        self._check_values()
        self._check_speculation()
        self._check_device()

    def _check_values(self) -> None:
        """Refuse what no setting can be, whatever the others are."""
        for name, allowed in _CHOICES.items():
            if getattr(self, name) not in get_args(allowed):
                choices = ", ".join(get_args(allowed))
                raise ConfigError(
                    f"'{name}' must be one of {choices}, not {getattr(self, name)!r}", param=name
                )
        names = self.speculation if isinstance(self.speculation, tuple) else ()
        if unknown := set(names) - set(get_args(Proposer)):
            raise ConfigError(
                f"'speculation' names {', '.join(sorted(map(repr, unknown)))}; there are: "
                f"{', '.join(get_args(Proposer))}",
                param="speculation",
            )
        for field in fields(self):
            value = getattr(self, field.name)
            try:
                msgspec.convert(value, field.type)
            except msgspec.ValidationError as error:
                raise ConfigError(f"'{field.name}': {error}: {value!r}", param=field.name) from None
        for name in _POSITIVE:
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"'{name}' must be at least 1, not {value!r}", param=name)
        if self.block_size & (self.block_size - 1):
            raise ConfigError(
                f"'block_size' must be a power of two, not {self.block_size}", param="block_size"
            )
        if not 0 < (1.0 if self.gpu_memory_fraction is None else self.gpu_memory_fraction) <= 1:
            raise ConfigError(
                f"'gpu_memory_fraction' must be above 0 and at most 1, not "
                f"{self.gpu_memory_fraction}",
                param="gpu_memory_fraction",
            )
        if (self.graph_memory_mib or 0) < 0:
            raise ConfigError(
                f"'graph_memory_mib' must be 0 or more, not {self.graph_memory_mib}",
                param="graph_memory_mib",
            )
        if self.chat_format not in (None, "none"):
            from pyengine.chat.formats import FORMATS

            if self.chat_format not in FORMATS:
                raise ConfigError(
                    f"'chat_format' must be none or one of {', '.join(FORMATS)}, "
                    f"not {self.chat_format!r}",
                    param="chat_format",
                )
        if not 0 < self.grammar_timeout_s < math.inf:
            raise ConfigError("'grammar_timeout_s' must be above 0", param="grammar_timeout_s")
        if not 0 <= self.simulated_step_ms < math.inf:
            raise ConfigError(
                "'simulated_step_ms' must be a number of 0 or more", param="simulated_step_ms"
            )

    def _check_speculation(self) -> None:
        """Refuse drafts that nobody can make."""
        if not 0 <= self.max_draft <= MAX_DRAFT:
            raise ConfigError(
                f"'max_draft' must be from 0 to {MAX_DRAFT}, not {self.max_draft}",
                param="max_draft",
            )
        if "draft_model" in (self.speculation or ()) and self.draft_model is None:
            raise ConfigError(
                "'speculation' names draft_model, but 'draft_model' does not say which",
                param="draft_model",
            )
        if self.draft_model is not None and self.device == "simulated":
            raise ConfigError(
                "'draft_model' has nothing to draft for on the simulated device, which says words "
                "at random",
                param="draft_model",
            )
        if self.draft_model is not None and "draft_model" not in self.proposers:
            raise ConfigError(
                f"'draft_model' is {self.draft_model!r}, but 'speculation' does not name "
                "draft_model",
                param="draft_model",
            )

    def _check_device(self) -> None:
        """Refuse what the device cannot do; ``auto`` is checked once it is known which it is."""
        if self.tensor_parallel > 1 and self.device == "simulated":
            raise ConfigError(
                f"'tensor_parallel' is {self.tensor_parallel}, but the simulated device has no "
                "model to share",
                param="tensor_parallel",
            )
        if self.tensor_parallel > 1 and self.draft_model is not None:
            raise ConfigError(
                f"'draft_model' is {self.draft_model!r}, but it would draft on one device alone: "
                f"it does not go with 'tensor_parallel' of {self.tensor_parallel}",
                param="draft_model",
            )
        for name in _UNFIT.get(self.device, ()):
            if getattr(self, name) != _DEFAULTS[name]:
                raise ConfigError(
                    f"'{name}' is {getattr(self, name)!r}, but the device is {self.device}, which "
                    "has no such thing",
                    param=name,
                )
        if self.dtype == "float16" and self.device == "cpu":
            raise ConfigError(
                "'dtype' of float16 is for GPUs; the CPU computes in float32 or bfloat16",
                param="dtype",
            )

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """Who drafts; see ``speculation``."""
        if self.speculation is not None:
            return self.speculation
        if self.device == "simulated":
            return ()
        drafting: tuple[Proposer, ...] = ("draft_model",) if self.draft_model else ()
        return ("forced", "prediction", "ngram", *drafting)

    @property
    def drafts_with_model(self) -> bool:
        """Whether a draft model is loaded."""
        return self.max_draft > 0 and "draft_model" in self.proposers

    @property
    def limits(self) -> Limits:
        """The mode's limits, with those given here in their place."""
        given = {f.name: getattr(self, f.name) for f in fields(Limits)}
        preset = replace(MODES[self.mode], **{k: v for k, v in given.items() if v is not None})
        if preset.max_tokens_per_step < preset.max_sequences:
            raise ConfigError(
                f"'max_tokens_per_step' ({preset.max_tokens_per_step}) must be at least "
                f"'max_sequences' ({preset.max_sequences}): every running sequence decodes one "
                "token a step",
                param="max_tokens_per_step",
            )
        return preset

    @classmethod
    def from_environment(
        cls, defaults: Mapping[str, Any] | None = None, /, **overrides: Any
    ) -> Self:
        """The configuration from ``PYENGINE_<NAME>`` variables, over ``defaults`` and under
        ``overrides`` not None.

        Raises:
            ConfigError: A variable does not read as its type, or names no setting.
        """
        values: dict[str, Any] = dict(defaults or {})
        known = {field.name: field for field in fields(cls)}
        for variable, text in os.environ.items():
            if not variable.startswith(ENVIRONMENT_PREFIX):
                continue
            name = variable.removeprefix(ENVIRONMENT_PREFIX).lower()
            if name not in known:
                raise ConfigError(f"{variable} names no setting; there are: {', '.join(known)}")
            try:
                value = split_names(text) if name == "speculation" else text
                values[name] = msgspec.convert(value, known[name].type, strict=False)
            except msgspec.ValidationError as error:
                raise ConfigError(f"{variable}={text!r}: {error}", param=name) from None
        values |= {name: value for name, value in overrides.items() if value is not None}
        return cls(**values)


def split_names(text: str) -> tuple[str, ...]:
    """The names in a list with commas; ``none`` is none of them."""
    return () if text == "none" else tuple(name.strip() for name in text.split(","))


_CHOICES = {
    "mode": Mode,
    "device": Device,
    "dtype": Dtype,
    "load_format": LoadFormat,
    "kv_cache_dtype": KvCacheDtype,
    "attention": AttentionName,
}

_OF_GPUS = ("kv_cache_dtype", "attention", "gpu_memory_fraction", "graph_memory_mib")

# What makes no sense on a device, or is not done there.
_UNFIT: dict[str, tuple[str, ...]] = {
    "cpu": _OF_GPUS,
    "simulated": _OF_GPUS,
    "cuda": ("threads",),
}

_DEFAULTS = {field.name: field.default for field in fields(EngineConfig)}

_POSITIVE = (
    "max_sequences",
    "max_tokens_per_step",
    "kv_cache_mib",
    "num_blocks",
    "block_size",
    "max_context",
    "max_waiting",
    "prefill_chunk",
    "tensor_parallel",
    "threads",
    "speculation_history",
    "grammar_cache_mib",
)

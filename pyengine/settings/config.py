"""The one frozen configuration of the whole engine, and its checks."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Self, get_args

from pyengine._core import DEFAULT_PROPOSERS, PROPOSERS
from pyengine.devices import AUTO, find_device
from pyengine.devices.spec import DeviceSpec
from pyengine.errors import ConfigError
from pyengine.settings.checks import at_least_one, check_rules, check_types, setting_types
from pyengine.settings.choices import (
    CHOICES,
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
from pyengine.settings.environment import check_environment, settings_from_environment
from pyengine.settings.modes import LARGE_GPU_BYTES, MODES, ON_LARGE_GPUS, Limits, Mode
from pyengine.settings.server import SERVER_TYPES
from pyengine.validation.rules import Rule

MAX_DRAFT = 64


@dataclass(frozen=True, kw_only=True)
class EngineConfig:
    """The configuration of an engine. Immutable.

    The three limits that are None come from ``mode``; other values that are None come from the
    model or the machine when the engine starts.

    Attributes:
        model: Folder in Hugging Face format, GGUF file, or hub name, to which ``@revision`` may be
            added; None is the demo model of the package.
        load_format: ``auto`` reads the model's weights; ``dummy`` fills them at random, for
            measuring: a folder needs none then, and ``model`` may also be ``llama-3-8b``,
            ``llama-3-70b``, ``qwen3.5-0.8b``, ``qwen3.5-35b-a3b`` or ``glm-4.7-flash``, the
            sizes of these models with the demo model's tokenizer.
        served_name: Names that the model answers to; none takes the folder's or the hub's. An
            answer has the name that was asked for, metrics and logs have the first.
        chat_format: How the model marks tool calls and reasoning: one of
            ``pyengine.chat.formats.FORMATS``; ``none`` leaves its answers as they are. None detects
            it from the chat template.
        special_tokens_in_content: What special tokens such as ``<|im_end|>`` are that messages and
            tools spell out: ``text``, so that they cannot forge a turn, or ``allow``: the tokens.
        template_timeout_s: Seconds that the chat template may take for a conversation.
        max_template_characters: Longest prompt that the chat template may make.
        generation_config: ``auto`` takes the sampling parameters that a request leaves out from the
            model's generation_config.json; ``none`` takes those of :class:`SamplingParams`.
        mode: Preset of limits: interactive (1 sequence), local (16) or server (256; 1,024 on a
            GPU of more than 64 GiB).
        device: Device of model steps: ``cpu``, ``cuda``, or ``simulated``, which takes
            ``simulated_step_ms`` for a step and needs no weights. ``auto`` is ``cuda`` where torch
            sees a GPU, else ``cpu``. A package adds others; see :mod:`pyengine.devices`.
        dtype: Type of weights and computation; ``auto`` is float32 on the CPU and bfloat16 on a
            GPU.
        quantization: Quantizes dense weights as they are loaded, those of a draft model too:
            ``int8`` or ``int4``, symmetric in groups of 32 inputs, embeddings and head in 8 bits.
            None keeps them as they are stored.
        max_sequences: Most sequences in one step.
        max_tokens_per_step: Most tokens in one step, prefill and decode together.
        kv_cache_mib: Memory of the KV cache in MiB, unless ``num_blocks`` says it in blocks; None
            takes the mode's on the CPU, and on a GPU what ``gpu_memory_fraction`` leaves for it.
        kv_cache_dtype: Type of the KV cache on a GPU; ``float8_e4m3`` takes the checkpoint's
            scales, or 1; ``auto`` is ``dtype``. The CPU supports only ``auto``.
        num_blocks: Blocks of the KV cache, in all layers; None takes what ``kv_cache_mib`` holds.
            States of sequences take pages of these blocks.
        block_size: Tokens in a block.
        max_context: Longest prompt and answer together, in tokens; None takes the model's. Only
            the simulated device takes more than that.
        max_waiting: Most requests that wait; one more is refused as overloaded.
        prefill_chunk: Most prompt tokens of one sequence in one step; None is the whole budget.
        prefill_beside_decodes: Most prompt tokens in a step that also decodes, unless three for
            each request are more: fewer make the gaps between an answer's tokens shorter and first
            tokens later. None is 32 on the CPU, where each token makes a step longer, and elsewhere
            the whole budget.
        prefix_cache: Share the blocks of equal prompt prefixes.
        snapshot_interval: Tokens between the snapshots of a sequence's state that prompts can begin
            from, where layers of the model have states; 0 takes them only at the ends of prompts
            and where prompts part. None takes one for as many tokens as have keys and values
            of the same weight, but 512 or more.
        attention: Attention backend on a GPU; ``auto`` takes the fastest that the machine supports.
        gpu_memory_fraction: Share of a GPU's memory that the engine may take; None is 0.9.
        graph_memory_mib: Memory of CUDA graphs in MiB; beyond it the least recently used are
            dropped. 0 is no graphs, None is 1024.
        tensor_parallel: GPUs that share the model, each with a part of every layer and a process
            of its own; on the CPU, processes. The model's KV heads must be divisible by it.
        expert_parallel: Each of ``tensor_parallel`` has whole experts of a mixture, in place of a
            part of every expert; their number must be divisible by it.
        threads: CPU threads of a model step, per process with ``tensor_parallel``; None divides
            the machine's cores among the processes, and is 1 for a tiny model.
        speculation: Draft token sources, by their names in ``pyengine._core.PROPOSERS``; the help
            of ``--speculation`` describes each. Drafts change no token, and stop where they do not
            save time. None takes those that cost nothing where they do not help, and
            ``draft_model`` where there is one; on the simulated device none, as it generates
            tokens at random.
        draft_model: Folder or hub name of a small model with the same tokenizer; ``demo`` is the
            demo model's sibling in the package. Its keys and values share ``kv_cache_mib``.
        max_draft: Most draft tokens of one sequence in a step; 0 is no speculation.
        step_timeout_s: Seconds that one step may take. An engine that takes longer counts as hung,
            and is replaced where it runs in a process of its own; so is one whose process has
            not run at all for that time, or for 30 seconds if that is less.
        nvtx: Make ranges of NVTX of what the scheduler does in each step, for Nsight Systems; needs
            torch.
        grammar_timeout_s: Seconds of CPU time that a grammar may take to compile. A request waits
            four times as long for it; then it is told to come again, and the grammar is kept.
        grammar_cache_mib: Memory of compiled grammars that are kept.
        simulated_step_ms: Milliseconds that a step of the simulated device takes.
        simulated_step_model: A file of ``pyengine record`` with the step times that the simulated
            device has, in place of ``simulated_step_ms``.
        simulated_acceptance: Share of draft tokens that are right on the simulated device, for
            measuring drafts there: its text then repeats itself, for ``ngram``, and it plays a
            draft model. Where that takes no time, drafts are always as long as they may be.
        simulated_draft_ms: Milliseconds that each pass of that draft model adds to a step.
        logits_processors: Logits processors that requests may ask for, as ``module:name`` of a
            class or function that the engine's process imports; see
            :mod:`pyengine.logits_processors`.
        adapter: Low-rank adapters to load at the start, as ``name=folder`` each.
        adapter_memory_mib: Memory of loaded adapters in MiB; beyond it the least recently used ones
            give way, and are loaded again when a request asks for them.

    Raises:
        ConfigError: A value is out of its range; the message names it.
    """

    model: str | None = None
    load_format: LoadFormat = "auto"
    served_name: tuple[str, ...] = ()
    chat_format: ChatFormatName | None = None
    special_tokens_in_content: SpecialTokensInContent = "text"
    template_timeout_s: float = 2.0
    max_template_characters: int = 8 << 20
    generation_config: GenerationConfigUse = "auto"
    mode: Mode = "local"
    device: Device = "auto"
    dtype: Dtype = "auto"
    quantization: Quantization | None = None
    max_sequences: int | None = None
    max_tokens_per_step: int | None = None
    kv_cache_mib: int | None = None
    kv_cache_dtype: KvCacheDtype = "auto"
    num_blocks: int | None = None
    block_size: int = 16
    max_context: int | None = None
    max_waiting: int = 4096
    prefill_chunk: int | None = None
    prefill_beside_decodes: int | None = None
    prefix_cache: bool = True
    snapshot_interval: int | None = None
    attention: AttentionName = "auto"
    gpu_memory_fraction: float | None = None
    graph_memory_mib: int | None = None
    tensor_parallel: int = 1
    expert_parallel: bool = False
    threads: int | None = None
    speculation: tuple[Proposer, ...] | None = None
    draft_model: str | None = None
    max_draft: int = 8
    step_timeout_s: float = 600.0
    nvtx: bool = False
    grammar_timeout_s: float = 5.0
    grammar_cache_mib: int = 256
    simulated_step_ms: float = 8.0
    simulated_step_model: str | None = None
    simulated_acceptance: float = 0.0
    simulated_draft_ms: float = 0.0
    logits_processors: tuple[str, ...] = ()
    adapter: tuple[str, ...] = ()
    adapter_memory_mib: int = 1024
    # Tests of drafts set it to False: every row then has as many drafts as there may be.
    _adaptive_drafts: bool = True

    def __post_init__(self) -> None:
        self._check_values()
        self._check_speculation()
        self._check_device()

    def _check_values(self) -> None:
        """Refuse values that are invalid whatever the other settings are."""
        for name, allowed in CHOICES.items():
            if getattr(self, name) not in (_DEFAULTS[name], *get_args(allowed)):
                choices = ", ".join(get_args(allowed))
                raise ConfigError(
                    f"'{name}' must be one of {choices}, not {getattr(self, name)!r}", param=name
                )
        names = self.speculation if isinstance(self.speculation, tuple) else ()
        if unknown := set(names) - set(PROPOSERS):
            raise ConfigError(
                f"'speculation' names {', '.join(sorted(map(repr, unknown)))}; there are: "
                f"{', '.join(PROPOSERS)}",
                param="speculation",
            )
        check_types(self)
        find_device(self.device)  # raises where there is none
        check_rules(self, _RULES)

    def _check_speculation(self) -> None:
        """Refuse a draft model that is missing or not used."""
        plays = not self.device_spec.computes and self.simulated_acceptance > 0
        if "draft_model" in (self.speculation or ()) and not (self.draft_model or plays):
            raise ConfigError(
                "'speculation' names draft_model, but 'draft_model' does not say which: a folder, "
                "a hub name, or 'demo' for the demo model's",
                param="draft_model",
            )
        if self.draft_model is not None and not self.device_spec.computes:
            raise ConfigError(
                f"'draft_model' is of no use on the {self.device} device, which generates tokens "
                "at random; 'simulated_acceptance' makes it play one",
                param="draft_model",
            )
        if self.draft_model is not None and "draft_model" not in self.proposers:
            raise ConfigError(
                f"'draft_model' is {self.draft_model!r}, but 'speculation' does not name "
                "draft_model: add it there, or leave 'speculation' out",
                param="draft_model",
            )

    def _check_device(self) -> None:
        """Refuse settings that the device does not have; ``auto`` is checked once resolved."""
        if self.tensor_parallel > 1 and self.device_spec.ranks is None:
            raise ConfigError(
                f"'tensor_parallel' is {self.tensor_parallel}, but processes cannot share a model "
                f"on the {self.device} device",
                param="tensor_parallel",
            )
        if self.expert_parallel and self.tensor_parallel == 1:
            raise ConfigError(
                "'expert_parallel' divides experts among the ranks of 'tensor_parallel', which "
                "is 1: set it to how many there are",
                param="expert_parallel",
            )
        if self.tensor_parallel > 1 and self.draft_model is not None:
            raise ConfigError(
                f"'draft_model' is {self.draft_model!r}, but a draft model runs on one device: "
                f"it cannot be used with 'tensor_parallel' of {self.tensor_parallel}",
                param="draft_model",
            )
        if self.tensor_parallel > 1 and self.logits_processors:
            raise ConfigError(
                "'logits_processors' see the logits of one process: they cannot be used with "
                f"'tensor_parallel' of {self.tensor_parallel}",
                param="logits_processors",
            )
        if self.device == AUTO:
            return
        for name in self.device_spec.lacks:
            if getattr(self, name) != _DEFAULTS[name]:
                raise ConfigError(
                    f"'{name}' is {getattr(self, name)!r}, but the device is {self.device}, which "
                    "has no such setting",
                    param=name,
                )
        if self.dtype not in ("auto", *self.device_spec.dtypes):
            raise ConfigError(
                f"'dtype' is {self.dtype}, but the device is {self.device}, which computes in "
                f"{' or '.join(self.device_spec.dtypes)}",
                param="dtype",
            )

    @property
    def device_spec(self) -> DeviceSpec:
        """The declaration of ``device``; until ``auto`` is resolved, that of the CPU."""
        return find_device(self.device)

    @property
    def proposers(self) -> tuple[Proposer, ...]:
        """The draft token sources; see ``speculation``."""
        if self.speculation is not None:
            return self.speculation
        if not self.device_spec.computes:
            return ()
        return (*DEFAULT_PROPOSERS, *(("draft_model",) if self.draft_model else ()))

    @property
    def drafts_with_model(self) -> bool:
        """Whether a draft model is loaded."""
        return self.max_draft > 0 and "draft_model" in self.proposers

    def sized(self, gpu_bytes: int) -> Self:
        """The configuration for a GPU of so much memory: on a large one the mode's limits are
        others, unless tokens in a step are given.
        """
        preset = ON_LARGE_GPUS.get(self.mode)
        if preset is None or gpu_bytes <= LARGE_GPU_BYTES or self.max_tokens_per_step is not None:
            return self
        sequences = self.max_sequences or preset.max_sequences
        return replace(
            self, max_sequences=sequences, max_tokens_per_step=preset.max_tokens_per_step
        )

    @property
    def most_requests(self) -> int:
        """Requests that an engine of this configuration may have, on whatever device."""
        large = ON_LARGE_GPUS.get(self.mode)
        most = self.limits.max_sequences
        may_be_large = self.device == AUTO or self.device_spec.memory_bytes is not None
        if large is not None and may_be_large and self.max_sequences is None:
            most = large.max_sequences
        return most + self.max_waiting

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
        types = setting_types(cls)
        check_environment([*types, *SERVER_TYPES])
        values = dict(defaults or {}) | settings_from_environment(types)
        values |= {name: value for name, value in overrides.items() if value is not None}
        return cls(**values)


_DEFAULTS = {field.name: field.default for field in fields(EngineConfig)}

_POSITIVE = (
    "max_sequences",
    "max_tokens_per_step",
    "kv_cache_mib",
    "num_blocks",
    "block_size",
    "max_template_characters",
    "max_context",
    "max_waiting",
    "prefill_chunk",
    "prefill_beside_decodes",
    "tensor_parallel",
    "threads",
    "grammar_cache_mib",
    "adapter_memory_mib",
)


_RULES: tuple[Rule[EngineConfig], ...] = (
    *map(at_least_one, _POSITIVE),
    Rule("block_size", "a power of two", lambda c: c.block_size & (c.block_size - 1) == 0),
    Rule(
        "gpu_memory_fraction",
        "above 0 and at most 1",
        lambda c: c.gpu_memory_fraction is None or 0 < c.gpu_memory_fraction <= 1,
    ),
    Rule("adapter", "name=folder each", lambda c: all("=" in each for each in c.adapter)),
    Rule("snapshot_interval", "0 or more", lambda c: (c.snapshot_interval or 0) >= 0),
    Rule("graph_memory_mib", "0 or more", lambda c: (c.graph_memory_mib or 0) >= 0),
    Rule("max_draft", f"from 0 to {MAX_DRAFT}", lambda c: 0 <= c.max_draft <= MAX_DRAFT),
    Rule("step_timeout_s", "above 0", lambda c: c.step_timeout_s > 0),
    Rule("template_timeout_s", "above 0", lambda c: c.template_timeout_s > 0),
    Rule("grammar_timeout_s", "above 0", lambda c: c.grammar_timeout_s > 0),
    Rule("simulated_step_ms", "a number of 0 or more", lambda c: c.simulated_step_ms >= 0),
    Rule("simulated_acceptance", "from 0 to 1", lambda c: 0 <= c.simulated_acceptance <= 1),
    Rule("simulated_draft_ms", "a number of 0 or more", lambda c: c.simulated_draft_ms >= 0),
)

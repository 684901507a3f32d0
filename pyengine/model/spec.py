"""A model's spec, read from its config.json, and the cache and buffers a configuration gives it.

Imports no torch.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyengine._core import StepLayout
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.architectures import find_architecture, respelled, traits_of
from pyengine.model.architectures.reading import keys_of_layers
from pyengine.model.architectures.traits import Traits
from pyengine.model.cache_groups import (
    CacheGroup,
    beside,
    cache_groups,
    longest_sequence,
    one_group,
    pages_for,
    spare_blocks,
    tables_of,
)
from pyengine.model.cache_layers import Latent, keys_of
from pyengine.model.config_defaults import architecture_of
from pyengine.model.config_numbers import check_numbers
from pyengine.model.positions import max_positions, short_context
from pyengine.model.runner import ModelInfo
from pyengine.model.text_part import text_part
from pyengine.model.vectors import has_head
from pyengine.model.weights.folder import (
    config_folder,
    draft_folder,
    is_named_spec,
    model_folder,
    served_names,
)
from pyengine.model.weights.whole_folder import check_folder
from pyengine.settings.config import EngineConfig
from pyengine.tokenizer import Tokenizer, end_token_ids, read_json


@dataclass(frozen=True)
class ModelSpec:
    """The settings and sizes that a runner is built from.

    Attributes:
        info: The model's dimensions and data types.
        num_blocks: KV pages of the configuration; a block has one in each of the model's page
            tables, and a state some.
        config: The model's config.json.
        draft: The draft model, with the same pages; None where there is none.
        dummy: Whether its weights are made up.
        quantization: What dense weights become as they are loaded: ``int8``, ``int4`` or None.
        expert_parallel: Whether each rank has whole experts, not a share of each.
        spare_blocks: For a draft model: see :func:`pyengine.model.cache_groups.spare_blocks`.
    """

    info: ModelInfo
    num_blocks: int
    config: dict[str, Any]
    draft: "ModelSpec | None" = None
    dummy: bool = False
    quantization: str | None = None
    expert_parallel: bool = False
    spare_blocks: int = 0

    @property
    def notes(self) -> dict[str, str]:
        """What states take of the cache, by name, in words; nothing without states."""
        info = self.info
        if not info.state_pages:
            return {}
        sequences = self.num_blocks // pages_for(info.cache_groups, 1, info.block_size)
        size = info.state_pages * info.block_bytes / 2**20
        return {"states": f"{size:,.1f} MiB a sequence, room for {sequences} sequences at most"}

    @property
    def spare_pages(self) -> int:
        """Pages that the cache has behind those of the configuration."""
        return self.spare_blocks * (tables_of(self.info.cache_groups) - 1)


def describe(config: EngineConfig, measured_blocks: int | None = None) -> ModelSpec:
    """Read the model's folder and settle context, data type and cache size.

    Args:
        config: A device of ``auto`` counts as the CPU.
        measured_blocks: KV blocks that a GPU has memory for; counts where the configuration says
            nothing of the cache. Until it is known a GPU's cache holds one sequence, the longest.

    Raises:
        ModelLoadError: A folder is missing, its config.json lacks something, or the draft model
            has other tokens.
        ConfigError: The KV cache does not hold one block and one state, or the model is a named
            spec and ``load_format`` is not ``dummy``.
    """
    if is_named_spec(config.model) and config.load_format != "dummy":
        raise ConfigError(
            f"{config.model!r} names a model spec without weights: give a folder or hub "
            "name, or 'load_format' dummy for random weights",
            param="load_format",
        )
    folder = model_folder(config.model)
    name = served_names(config)[0]
    info, model = _read(config_folder(config.model), name, config)
    info = replace(info, folder=folder)
    if not config.drafts_with_model or config.draft_model is None:
        return _with_cache(config, info, model, measured_blocks)
    drafts = draft_folder(config.draft_model)
    check_same_tokens(folder, drafts)
    draft, draft_model = _read(drafts, config.draft_model, config)
    # It tells blocks by their pages of the first table, which must be those of all tokens.
    info = info if info.cache_groups[0].tables else in_one_page(info)
    draft = in_pages_of(draft, info)
    dummy = config.load_format == "dummy"
    # A block holds the keys and values of both.
    block_bytes = info.block_bytes + draft.block_bytes
    spec = _with_cache(config, replace(info, block_bytes=block_bytes), model, measured_blocks)
    # Positions beyond those that it was made for cost acceptance and nothing else.
    draft = replace(draft, max_context=spec.info.max_context)
    drafter = ModelSpec(
        draft,
        spec.num_blocks,
        draft_model,
        dummy=dummy,
        quantization=config.quantization,
        spare_blocks=spare_blocks(info.cache_groups, config.block_size),
    )
    return replace(spec, draft=drafter)


def in_one_page(info: ModelInfo) -> ModelInfo:
    """The same with all layers in one group: windows are honoured, but keep all tokens."""
    return _grouped(info, one_group(info.layers))


def in_pages_of(draft: ModelInfo, info: ModelInfo) -> ModelInfo:
    """A draft model with its layers in the pages of the model that it drafts for.

    Raises:
        ModelLoadError: Layers of the draft model have states, or the other model has no pages.
    """
    if draft.state_pages:
        raise ModelLoadError(
            f"the draft model {draft.name} has layers with states, which are not supported there: "
            "draft with a model whose layers all attend",
            param="draft_model",
        )
    if not tables_of(info.cache_groups):
        raise ModelLoadError(
            f"{info.name} has no layer that keeps keys and values, in whose pages a draft model's "
            "could be: leave 'draft_model' out",
            param="draft_model",
        )
    return _grouped(draft, beside(info.cache_groups, draft.layers))


def _grouped(info: ModelInfo, groups: tuple[CacheGroup, ...]) -> ModelInfo:
    return replace(info, cache_groups=groups).with_states()


def check_same_tokens(folder: Path, drafts: Path) -> None:
    """Check that the tokenizers of two models have the same tokens with the same ids.

    Raises:
        ModelLoadError: They have not; names a token.
    """
    if _same_file(folder / "tokenizer.json", drafts / "tokenizer.json"):
        return
    try:
        ours, theirs = (Tokenizer.from_folder(place).vocabulary() for place in (folder, drafts))
    except ModelLoadError as error:
        raise ModelLoadError(
            f"cannot compare the tokenizers of {folder} and of the draft model {drafts}: {error}",
            param="draft_model",
        ) from error
    differing = sorted(
        token for token in ours.keys() | theirs.keys() if ours.get(token) != theirs.get(token)
    )
    if differing:
        token = differing[0]
        raise ModelLoadError(
            f"the draft model {drafts} has other tokens than {folder}: {len(differing)} "
            f"differ, such as {token!r} ({theirs.get(token)}, not {ours.get(token)})",
            param="draft_model",
        )


def _same_file(one: Path, other: Path) -> bool:
    return one.exists() and other.exists() and one.read_bytes() == other.read_bytes()


def _read(folder: Path, name: str, config: EngineConfig) -> tuple[ModelInfo, dict[str, Any]]:
    """The model in ``folder``, with all of its context, and its config.json."""
    check_folder(folder)
    model = text_part(read_json(folder / "config.json"))
    architecture = architecture_of(model)
    if config.device_spec.computes:
        find_architecture(architecture)
    model = respelled(architecture, model)
    if not has_head(model):
        # Nothing is made of logits then, and the embedding serves as well as any head.
        model["tie_word_embeddings"] = True
    check_numbers(model, folder / "config.json")

    def number(key: str, default: int | None = None) -> int:
        value = model.get(key) if model.get(key) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelLoadError(
                f"{folder / 'config.json'}: {key!r} must be a positive integer, not {value!r}"
            )
        return value

    for name_of_size in ("num_hidden_layers", "hidden_size", "vocab_size"):
        number(name_of_size)
    dtype = config.device_spec.dtype if config.dtype == "auto" else config.dtype
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    traits = traits_of(architecture, model)
    traits = traits or Traits()
    layers = traits.layers or keys_of_layers(model)
    attends = any(isinstance(layer, Latent) or keys_of(layer) for layer in layers)
    context = max_positions(model, number("max_position_embeddings", 2048))
    context = min(context, traits.most_tokens or context)
    if not config.device_spec.computes:
        # It has no positions that a model was made for.
        context = config.max_context or context
    info = ModelInfo(
        name=name,
        folder=folder,
        architecture=architecture,
        vocab_size=number("vocab_size"),
        max_context=context,
        eos_token_ids=_eos(folder, model),
        hidden_size=number("hidden_size"),
        num_heads=number("num_attention_heads") if attends else 0,
        dtype=dtype,
        block_size=config.block_size,
        block_bytes=0,
        layers=layers,
        cache_groups=cache_groups(layers),
        attention_sinks=traits.names.sinks is not None,
        max_draft=config.max_draft if config.proposers else 0,
        kv_cache_dtype=kv_dtype,
    )
    return info.with_states(config.tensor_parallel), model


def _with_cache(
    config: EngineConfig, info: ModelInfo, model: dict[str, Any], measured: int | None
) -> ModelSpec:
    measures = config.device_spec.memory_bytes is not None
    if measures and config.num_blocks is None and config.kv_cache_mib is None:
        longest = min(info.max_context, config.max_context or info.max_context)
        wanted = pages_for(info.cache_groups, longest, config.block_size)
        num_blocks = wanted if measured is None else measured
    else:
        num_blocks = _num_blocks(config, info)
    if config.max_context is not None and config.max_context > info.max_context:
        raise ConfigError(
            f"'max_context' is {config.max_context}, but the model was made for {info.max_context} "
            "tokens",
            param="max_context",
        )
    held = longest_sequence(info.cache_groups, num_blocks, config.block_size)
    limits = (info.max_context, held, config.max_context)
    context = min(limit for limit in limits if limit is not None)
    dummy = config.load_format == "dummy"
    # A device that computes nothing has no angles.
    short = short_context(model, context) if config.device_spec.computes else None
    return ModelSpec(
        replace(info, max_context=context, short_context=short),
        num_blocks,
        model,
        dummy=dummy,
        quantization=config.quantization,
        expert_parallel=config.expert_parallel,
    )


def make_layout(config: EngineConfig, info: ModelInfo) -> StepLayout:
    """The layout that holds every step of ``config``: each sequence may have a full page table."""
    limits = config.limits
    pages = -(-info.max_context // info.block_size)
    return StepLayout(
        limits.max_tokens_per_step,
        limits.max_sequences,
        limits.max_sequences * pages,
        max_draft=config.max_draft,
        vocab_size=info.vocab_size,
        tables=max(1, tables_of(info.cache_groups)),
        hidden_size=info.hidden_size,
        states=info.state_pages > 0,
    )


def _num_blocks(config: EngineConfig, info: ModelInfo) -> int:
    """Pages of the configuration's cache, which hold one block, and one state if there are any.

    Raises:
        ConfigError: They do not.
    """
    page_bytes, tables, state = info.block_bytes, tables_of(info.cache_groups), info.state_pages
    least = tables + state
    if config.num_blocks is not None:
        pages = config.num_blocks * max(1, tables)
        if pages < least:
            raise ConfigError(
                f"'num_blocks' of {config.num_blocks} does not hold one sequence: its state takes "
                f"{state} of {pages} pages, and a block {tables}; set it to "
                f"{-(-least // max(1, tables))} or more",
                param="num_blocks",
            )
        return pages
    mebibytes = config.limits.kv_cache_mib
    pages = mebibytes * 2**20 // page_bytes
    if pages < least and state:
        raise ConfigError(
            f"'kv_cache_mib' of {mebibytes} MiB does not hold one sequence: its state takes "
            f"{state * page_bytes / 2**20:.1f} MiB, and a block {tables * page_bytes / 2**20:.1f}; "
            f"set it to {-(-least * page_bytes // 2**20)} or more",
            param="kv_cache_mib",
        )
    if pages < tables:
        raise ConfigError(
            f"'kv_cache_mib' of {mebibytes} MiB does not hold one KV block "
            f"({page_bytes * tables} bytes)",
            param="kv_cache_mib",
        )
    return pages


def _eos(folder: Path, model: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: those of generation_config.json first, then config.json's."""
    generation = read_json(folder / "generation_config.json")
    return tuple(dict.fromkeys([*end_token_ids(generation), *end_token_ids(model)]))

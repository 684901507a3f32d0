"""A model's spec, read from its config.json, and the cache and buffers a configuration gives it.

Imports no torch.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pyengine._core import StepLayout
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.architectures import respelled, traits_of
from pyengine.model.architectures.traits import Traits
from pyengine.model.cache_groups import (
    CacheGroup,
    beside,
    cache_groups,
    longest_sequence,
    one_group,
    pages_for,
    slots_of,
    spare_blocks,
    tables_of,
)
from pyengine.model.config_numbers import check_numbers
from pyengine.model.dtypes import ITEM_BYTES
from pyengine.model.layer_heads import LayerHeads, slots_by_layer, unit_of
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
from pyengine.model.windows import layer_windows
from pyengine.settings.config import EngineConfig
from pyengine.tokenizer import read_json


@dataclass(frozen=True)
class ModelSpec:
    """The settings and sizes that a runner is built from.

    Attributes:
        info: The model's dimensions and data types.
        num_blocks: KV pages of the configuration; a block has one in each of the model's page
            tables.
        config: The model's config.json.
        draft: The draft model, with the same pages; None where there is none.
        dummy: Whether its weights are made up.
        quantization: What dense weights become as they are loaded: ``int8``, ``int4`` or None.
        expert_parallel: Whether each rank has whole experts, not a share of each.
        spare_blocks: Of a draft model: see :func:`pyengine.model.cache_groups.spare_blocks`.
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
        ConfigError: The KV cache does not hold one block, or the model is a named spec and
            ``load_format`` is not ``dummy``.
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
    return _grouped(info, one_group(slots_by_layer(info.heads)))


def in_pages_of(draft: ModelInfo, info: ModelInfo) -> ModelInfo:
    """A draft model with its layers in the pages of the model that it drafts for."""
    return _grouped(draft, beside(info.cache_groups, draft.windows, slots_by_layer(draft.heads)))


def _grouped(info: ModelInfo, groups: tuple[CacheGroup, ...]) -> ModelInfo:
    slot_bytes = info.block_bytes // slots_of(info.cache_groups)
    return replace(info, cache_groups=groups, block_bytes=slots_of(groups) * slot_bytes)


def check_same_tokens(folder: Path, drafts: Path) -> None:
    """Check that the tokenizers of two models have the same tokens with the same ids.

    Raises:
        ModelLoadError: They have not; names a token.
    """
    paths = [place / "tokenizer.json" for place in (folder, drafts)]
    try:
        texts = [path.read_text(encoding="utf-8") for path in paths]
        if texts[0] == texts[1]:
            return
        import tokenizers

        ours, theirs = (
            tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True) for text in texts
        )
    except Exception as error:  # tokenizers raises bare Exception
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


def _read(folder: Path, name: str, config: EngineConfig) -> tuple[ModelInfo, dict[str, Any]]:
    """The model in ``folder``, with all of its context, and its config.json."""
    if not (folder / "config.json").exists():
        raise ModelLoadError(f"{folder} has no config.json: is it a model in Hugging Face format?")
    model = text_part(read_json(folder / "config.json"))
    architecture = str((model.get("architectures") or ["unknown"])[0])
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

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    head_dim, layers = number("head_dim", hidden // heads), number("num_hidden_layers")
    kv_heads = number("num_key_value_heads", heads)
    dtype = config.device_spec.dtype if config.dtype == "auto" else config.dtype
    kv_dtype = dtype if config.kv_cache_dtype == "auto" else config.kv_cache_dtype
    traits = traits_of(architecture, model)
    traits = traits or Traits()
    by_layer = traits.heads or (LayerHeads(kv_heads, head_dim),) * layers
    windows = traits.windows or layer_windows(model, layers)
    groups = cache_groups(windows, slots_by_layer(by_layer))
    slot_bytes = 2 * unit_of(by_layer) * config.block_size * ITEM_BYTES[kv_dtype]
    context = max_positions(model, number("max_position_embeddings", 2048))
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
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        block_size=config.block_size,
        block_bytes=slots_of(groups) * slot_bytes,
        windows=windows,
        chunks=traits.chunks,
        layer_heads=traits.heads,
        cache_groups=groups,
        attention_sinks=traits.names.sinks is not None,
        kv_cache_dtype=kv_dtype,
    )
    return info, model


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
        tables=tables_of(info.cache_groups),
        hidden_size=info.hidden_size,
    )


def _num_blocks(config: EngineConfig, info: ModelInfo) -> int:
    block_bytes, tables = info.block_bytes, tables_of(info.cache_groups)
    if config.num_blocks is not None:
        return config.num_blocks * tables
    mebibytes = config.limits.kv_cache_mib
    blocks = mebibytes * 2**20 // block_bytes
    if blocks < tables:
        raise ConfigError(
            f"'kv_cache_mib' of {mebibytes} MiB does not hold one KV block "
            f"({block_bytes * tables} bytes)",
            param="kv_cache_mib",
        )
    return blocks


def _eos(folder: Path, model: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: those of generation_config.json first, then config.json's."""
    found: dict[int, None] = {}
    for source in (read_json(folder / "generation_config.json"), model):
        ids = source.get("eos_token_id")
        found |= {t: None for t in (ids if isinstance(ids, list) else [ids]) if isinstance(t, int)}
    return tuple(found)

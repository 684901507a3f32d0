"""A model's shape from its config.json, and the cache and buffers that a configuration gives it.

Imports no torch.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyengine._core import StepLayout
from pyengine.config import EngineConfig
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.folder import model_folder, served_name
from pyengine.model.runner import ModelInfo

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


@dataclass(frozen=True)
class ModelShape:
    """What an engine builds a runner from.

    Attributes:
        info: The model's shape.
        num_blocks: KV blocks of the configuration.
        config: The model's config.json.
    """

    info: ModelInfo
    num_blocks: int
    config: dict[str, Any]


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        ModelLoadError: Not readable, or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise ModelLoadError(
            f"{path.parent} has no {path.name}: is it a model in Hugging Face format?"
        ) from error
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds no JSON object")
    return value


def describe(config: EngineConfig) -> ModelShape:
    """Read the model's folder and settle context, data type and cache size.

    Raises:
        ModelLoadError: The folder is missing or its config.json lacks something.
        ConfigError: The KV cache does not hold one block.
    """
    folder = model_folder(config.model)
    model = read_json(folder / "config.json")

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
    dtype = "float32" if config.dtype == "auto" else config.dtype
    block_bytes = 2 * layers * kv_heads * head_dim * config.block_size * ITEM_BYTES[dtype]
    num_blocks = _num_blocks(config, block_bytes)
    limits = (number("max_position_embeddings", 2048), config.max_context)
    info = ModelInfo(
        name=config.served_name or served_name(config.model),
        folder=folder,
        architecture=str((model.get("architectures") or ["unknown"])[0]),
        vocab_size=number("vocab_size"),
        max_context=min(num_blocks * config.block_size, *(n for n in limits if n is not None)),
        eos_token_ids=_eos(folder, model),
        num_layers=layers,
        hidden_size=hidden,
        num_heads=heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        dtype=dtype,
        block_size=config.block_size,
        block_bytes=block_bytes,
    )
    return ModelShape(info, num_blocks, model)


def make_layout(config: EngineConfig, info: ModelInfo) -> StepLayout:
    """The layout that holds every step of ``config``: each sequence may have a full page table."""
    from pyengine._core import StepLayout

    limits = config.limits
    pages = -(-info.max_context // info.block_size)
    return StepLayout(
        limits.max_tokens_per_step,
        limits.max_sequences,
        limits.max_sequences * pages,
        max_draft=config.max_draft,
        vocab_size=info.vocab_size,
    )


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    if config.num_blocks is not None:
        return config.num_blocks
    mebibytes = config.limits.kv_cache_mib
    blocks = mebibytes * 2**20 // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"'kv_cache_mib' of {mebibytes} MiB does not hold one KV block ({block_bytes} bytes)",
            param="kv_cache_mib",
        )
    return blocks


def _eos(folder: Path, model: dict[str, Any]) -> tuple[int, ...]:
    """End-of-sequence ids: those of generation_config.json first, then config.json's."""
    generation = folder / "generation_config.json"
    found: dict[int, None] = {}
    for source in (read_json(generation) if generation.is_file() else {}, model):
        ids = source.get("eos_token_id")
        found |= {t: None for t in (ids if isinstance(ids, list) else [ids]) if isinstance(t, int)}
    return tuple(found)

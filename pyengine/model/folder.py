"""From a model's name to its folder and its shape. Imports no torch."""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyengine.config import EngineConfig
from pyengine.errors import ConfigError, ModelLoadError
from pyengine.model.batch import Layout
from pyengine.model.runner import ModelInfo

DEMO_NAME = "pyengine-demo"
DEMO_FOLDER = Path(__file__).resolve().parent.parent / "demo" / "model"
HUB_FILES = ("*.json", "*.safetensors", "*.jinja", "tokenizer.model")

ITEM_BYTES = {"float32": 4, "bfloat16": 2}


def find_folder(model: str | None) -> Path:
    """The folder of ``model``: a path, a hub name (fetched if it is not cached), None for the demo.

    Raises:
        ModelLoadError: There is no such folder, or the hub does not give it.
    """
    if model is None:
        if not (DEMO_FOLDER / "config.json").is_file():
            raise ModelLoadError(
                f"the demo model is missing from this installation ({DEMO_FOLDER})"
            )
        return DEMO_FOLDER
    path = Path(model).expanduser()
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ModelLoadError(f"{path} has no config.json: not a model in Hugging Face format")
        return path
    if path.is_absolute() or model.startswith((".", "~")) or model.count("/") != 1:
        raise ModelLoadError(
            f"no folder {model!r}, and it is no hub name (which is like 'organisation/model')"
        )
    return _fetch(model)


def _fetch(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(name, allow_patterns=list(HUB_FILES)))
    except LocalEntryNotFoundError as error:
        raise ModelLoadError(
            f"{name!r} is neither a folder nor in the local hub cache, and the hub cannot be "
            f"reached: check the network, or run 'hf download {name}' where there is one and "
            f"copy the cache here"
        ) from error
    except (HfHubHTTPError, HFValidationError, OSError) as error:
        raise ModelLoadError(
            f"the hub does not give {name!r}: check its spelling, and run 'hf auth login' if it "
            f"is gated ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error
    if not (folder / "config.json").is_file():
        raise ModelLoadError(f"{name!r} has no config.json on the hub: not a transformers model")
    return folder


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in ``path``.

    Raises:
        ModelLoadError: Not readable, or no object.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} holds no JSON object")
    return value


def positive(value: int | None, name: str) -> int:
    """``value``, which the resolved configuration gives.

    Raises:
        ConfigError: It is not given, or not positive.
    """
    if value is None or value < 1:
        raise ConfigError(f"'{name}' must be at least 1, not {value!r}", param=name)
    return value


@dataclass(frozen=True)
class ModelShape:
    """A model's config.json, and the cache that an engine's configuration gives it."""

    info: ModelInfo
    num_blocks: int
    config: dict[str, Any]


def describe(config: EngineConfig) -> ModelShape:
    """Read the model's folder and settle context, data type and cache size.

    Raises:
        ModelLoadError: The folder is missing or config.json lacks something.
        ConfigError: The cache does not hold one block.
    """
    folder = find_folder(config.model)
    model = read_json(folder / "config.json")

    def number(key: str, default: int | None = None) -> int:
        value = model.get(key) if model.get(key) is not None else default
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise ModelLoadError(f"{folder / 'config.json'}: {key!r} must be a positive integer")
        return value

    hidden, heads = number("hidden_size"), number("num_attention_heads")
    head_dim, layers = number("head_dim", hidden // heads), number("num_hidden_layers")
    kv_heads = number("num_key_value_heads", heads)
    dtype = "float32" if config.dtype == "auto" else config.dtype
    if dtype not in ITEM_BYTES:
        raise ConfigError(
            f"'dtype' must be auto, float32 or bfloat16, not {dtype!r}", param="dtype"
        )
    block_bytes = 2 * layers * kv_heads * head_dim * config.block_size * ITEM_BYTES[dtype]
    num_blocks = _num_blocks(config, block_bytes)
    context = number("max_position_embeddings", 2048)
    if config.max_context is not None:
        context = min(context, positive(config.max_context, "max_context"))
    info = ModelInfo(
        name=config.served_name or _name(config.model, folder),
        folder=folder,
        architecture=str((model.get("architectures") or ["unknown"])[0]),
        vocab_size=number("vocab_size"),
        max_context=min(context, num_blocks * config.block_size),
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


def make_layout(config: EngineConfig, info: ModelInfo) -> Layout:
    """The layout that holds every step of ``config``: each sequence may have a full page table."""
    from pyengine._core import StepLayout

    rows = positive(config.max_sequences, "max_sequences")
    pages = -(-info.max_context // info.block_size)
    tokens = positive(config.max_tokens_per_step, "max_tokens_per_step")
    return StepLayout(tokens, rows, rows * pages)


def _name(model: str | None, folder: Path) -> str:
    if model is None:
        return DEMO_NAME
    return folder.resolve().name if Path(model).expanduser().is_dir() else model


def _num_blocks(config: EngineConfig, block_bytes: int) -> int:
    if config.num_blocks is not None:
        return positive(config.num_blocks, "num_blocks")
    blocks = positive(config.kv_cache_mib, "kv_cache_mib") * 2**20 // block_bytes
    if blocks < 1:
        raise ConfigError(
            f"'kv_cache_mib' of {config.kv_cache_mib} MiB does not hold one KV block "
            f"({block_bytes} bytes)",
            param="kv_cache_mib",
        )
    return blocks


def _eos(folder: Path, model: dict[str, Any]) -> tuple[int, ...]:
    found: dict[int, None] = {}
    generation = folder / "generation_config.json"
    for source in (read_json(generation) if generation.is_file() else {}, model):
        ids = source.get("eos_token_id")
        for token in ids if isinstance(ids, list) else [ids]:
            if isinstance(token, int):
                found[token] = None
    return tuple(found)

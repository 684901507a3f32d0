"""Reads adapters from folders in PEFT's format: adapter_config.json and adapter_model.safetensors.

LoRA (Hu et al., 2021) and rsLoRA (Kalajdzievski, 2023) are read. What would change the model in
another way is refused by its name: nothing of a folder is left out in silence.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine.errors import AdapterError, ModelLoadError
from pyengine.model.text_part import plain_name
from pyengine.model.weights.mapped import safetensors

CONFIG_FILE = "adapter_config.json"
WEIGHTS_FILE = "adapter_model.safetensors"
MAX_RANK = 512
"""Ranks of a module beyond this are refused: so large an adapter is better merged."""

_PREFIX = "base_model.model."
_WEIGHT = re.compile(r"(?P<module>.+)\.lora_(?P<which>[AB])(\.default)?\.weight")
_REFUSED = {
    "use_dora": "DoRA",
    "use_qalora": "QALoRA",
    "lora_bias": "a bias of LoRA",
    "modules_to_save": "'modules_to_save', whole layers that were trained",
    "trainable_token_indices": "embeddings of trained tokens",
    "target_parameters": "'target_parameters', such as experts in one tensor",
    "layer_replication": "replicated layers",
    "alora_invocation_tokens": "activated LoRA",
    "arrow_config": "Arrow",
    "megatron_config": "Megatron's layers",
}
"""What an adapter's configuration may ask for that is not there, in words."""
_OTHER_TENSORS = {
    "lora_magnitude_vector": "DoRA",
    "lora_embedding": "an adapter of embeddings",
    "lora_B.bias": "a bias of LoRA",
    "modules_to_save": "whole layers that were trained",
}


@dataclass(frozen=True, eq=False)
class LowRank:
    """What an adapter adds to the weight of one linear layer: ``scale * up @ down``.

    Attributes:
        down: float32 or the file's type [rank, inputs]; PEFT calls it A.
        up: [outputs, rank]; PEFT calls it B.
        scale: Multiplies the product.
    """

    down: NDArray[Any]
    up: NDArray[Any]
    scale: float


@dataclass(frozen=True, eq=False)
class AdapterFile:
    """An adapter as its folder has it.

    Attributes:
        folder: Where it was read.
        digest: The SHA-256 of its modules, their scales and weights: 32 bytes.
        base: The model that it was trained on, as its configuration names it.
        modules: What it adds, by the name of the linear layer in the model's dense checkpoint.
    """

    folder: Path
    digest: bytes
    base: str | None
    modules: Mapping[str, LowRank]


def base_of(folder: Path) -> str | None:
    """The model that an adapter's folder names as its base.

    Raises:
        AdapterError: Its configuration cannot be read.
    """
    base = _config(folder).get("base_model_name_or_path")
    return base if isinstance(base, str) and base else None


def read_adapter(folder: Path) -> AdapterFile:
    """The adapter in a folder. Reads all of it; slow.

    Raises:
        AdapterError: It cannot be read, is damaged, or asks for what is not supported; says what.
    """
    config = _config(folder)
    _check_config(folder, config)
    modules = _modules(folder, config)
    if not modules:
        raise AdapterError(f"{folder / WEIGHTS_FILE} has no weights of LoRA")
    return AdapterFile(folder, _digest(modules), base_of(folder), modules)


def _config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG_FILE
    if not path.is_file():
        raise AdapterError(f"{folder} has no {CONFIG_FILE}: give the folder of a PEFT adapter")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AdapterError(f"cannot read {path}: {error}") from error
    if not isinstance(config, dict):
        raise AdapterError(f"{path} must hold an object")
    return config


def _check_config(folder: Path, config: Mapping[str, Any]) -> None:
    kind = config.get("peft_type")
    if kind != "LORA":
        raise AdapterError(f"{folder} has an adapter of the kind {kind!r}; only LORA is supported")
    for key, words in _REFUSED.items():
        if config.get(key):
            raise AdapterError(f"{folder} asks for {words} ('{key}'), which is not supported")
    if config.get("bias", "none") != "none":
        raise AdapterError(f"{folder} trains biases ('bias'), which is not supported")
    if not (folder / WEIGHTS_FILE).is_file():
        if any(folder.glob("*.bin")) or any(folder.glob("*.pt")):
            raise AdapterError(
                f"{folder} has pickled weights, which could run code and are not loaded: save the "
                f"adapter as {WEIGHTS_FILE}"
            )
        raise AdapterError(f"{folder} has no {WEIGHTS_FILE}")


def _modules(folder: Path, config: Mapping[str, Any]) -> dict[str, LowRank]:
    try:
        tensors = safetensors(folder / WEIGHTS_FILE)
    except ModelLoadError as error:
        raise AdapterError(error.message) from error
    halves: dict[str, dict[str, NDArray[Any]]] = {}
    for name, tensor in tensors.items():
        found = _WEIGHT.fullmatch(name)
        if found is None:
            words = next((words for part, words in _OTHER_TENSORS.items() if part in name), None)
            what = f" ({words})" if words else ""
            raise AdapterError(f"{folder} has the tensor {name!r}{what}, which is not supported")
        module = found["module"].removeprefix(_PREFIX)
        halves.setdefault(module, {})[found["which"]] = tensor
    modules = {}
    for module, pair in sorted(halves.items()):
        if len(pair) != 2:
            raise AdapterError(f"{folder} has only lora_{next(iter(pair))} of {module!r}")
        low_rank = _low_rank(folder, module, pair["A"], pair["B"], config)
        modules[plain_name(f"{module}.weight").removesuffix(".weight")] = low_rank
    return modules


def _low_rank(
    folder: Path, module: str, down: NDArray[Any], up: NDArray[Any], config: Mapping[str, Any]
) -> LowRank:
    where = f"{folder}: the weights of {module!r}"
    if down.ndim != 2 or up.ndim != 2 or up.shape[1] != down.shape[0]:
        raise AdapterError(f"{where} do not fit each other: A is {down.shape}, B {up.shape}")
    rank, alpha = (
        _by_pattern(module, config, "r", "rank"),
        _by_pattern(module, config, "lora_alpha", "alpha"),
    )
    if len(down) != rank:
        raise AdapterError(f"{where} have rank {len(down)}, but {CONFIG_FILE} says {rank:g}")
    if len(down) > MAX_RANK:
        raise AdapterError(f"{where} have rank {len(down)}; at most {MAX_RANK} are supported")
    for half in (down, up):
        if half.dtype.kind not in "fV" and half.dtype.name not in ("bfloat16", "float16"):
            raise AdapterError(f"{where} are {half.dtype}, which is no type of floats")
        if not np.isfinite(half.astype(np.float32)).all():
            raise AdapterError(f"{where} are not all finite numbers")
    scale = alpha / (rank**0.5 if config.get("use_rslora") else rank)
    return LowRank(down, up, scale)


def _by_pattern(module: str, config: Mapping[str, Any], key: str, pattern: str) -> float:
    """A number that all modules have, or those whose names end as a pattern says, have."""
    patterns, number = config.get(f"{pattern}_pattern") or {}, config.get(key)
    if not isinstance(patterns, dict):
        raise AdapterError(f"{CONFIG_FILE}: '{pattern}_pattern' must be an object")
    for expression, own in patterns.items():
        try:
            found = re.fullmatch(rf"(.*\.)?({expression.removeprefix('^')})", module)
        except re.error as error:
            raise AdapterError(
                f"{CONFIG_FILE}: '{pattern}_pattern' has {expression!r}: {error}"
            ) from error
        if found:
            number = own
            break
    if not isinstance(number, int | float) or isinstance(number, bool) or not number > 0:
        raise AdapterError(f"{CONFIG_FILE}: '{key}' must be above 0, not {number!r}")
    return float(number)


def _digest(modules: Mapping[str, LowRank]) -> bytes:
    digest = hashlib.sha256()
    for name, low_rank in sorted(modules.items()):
        digest.update(f"{name} {low_rank.scale!r}".encode())
        for half in (low_rank.down, low_rank.up):
            digest.update(f" {half.dtype.name} {half.shape}".encode())
            digest.update(np.ascontiguousarray(half).view(np.uint8).data)
    return digest.digest()

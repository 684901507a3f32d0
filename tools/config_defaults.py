"""Writes pyengine/model/config_defaults.json: what keys that a config.json leaves out mean.

    python -m tools.config_defaults

The facts are those of transformers' configuration classes, which are needed here and nowhere in the
package. One line of the file is one ``model_type``.
"""

import inspect
import json
import re
import sys
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from transformers import CONFIG_MAPPING, PretrainedConfig
from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
)

PATH = Path(__file__).parents[1] / "pyengine" / "model" / "config_defaults.json"
OF_NO_USE = {field.name for field in fields(PretrainedConfig)} | {
    "bos_token_id", "eos_token_id", "pad_token_id", "sep_token_id", "initializer_range", "use_cache"
}  # fmt: skip
OF_MANY = (
    "attention_bias", "attention_chunk_size", "clip_qkv", "layer_types", "max_window_layers",
    "mlp_bias", "sliding_window", "sliding_window_pattern", "use_qk_norm", "use_sliding_window",
)  # fmt: skip
"""Keys that several families have, and others ignore."""
KINDS = {"global": "full_attention", "local": "sliding_attention"}


def defaults(kind: Any) -> dict[str, Any]:
    """The defaults of a configuration class, by the keys of config.json that they stand for."""
    found: dict[str, Any] = {}
    for field in fields(kind):
        value = field.default if field.default_factory is MISSING else field.default_factory()
        plain = isinstance(value, bool | int | float | str | list | tuple)
        trains = re.search("drop|router_aux|output_router|summary_|pretraining_tp", field.name)
        if field.name not in OF_NO_USE and plain and not trains:
            found[field.name] = value
    return found | _rotary(kind)


def entry(kind: Any) -> dict[str, Any]:
    """All that the file says of a configuration class."""
    usual = {name: own for name, own in kind.attribute_map.items() if name != own}
    found = defaults(kind)
    nullable = [
        field.name for field in fields(kind) if field.name in found and "None" in str(field.type)
    ]
    architecture = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.get(kind.model_type)
    known = {"architecture": architecture} if architecture else {}
    return known | {
        "defaults": found,
        "nullable": nullable,
        "names": usual,
        "ignored": ignored(kind),
    }


def ignored(kind: Any) -> list[str]:
    """The keys of :data:`OF_MANY` that neither the class nor its models read."""
    read = {field.name for field in fields(kind)} | kind.attribute_map.keys()
    for base in kind.__mro__:
        if base.__module__.startswith("transformers.models."):
            read |= set(re.findall(r'kwargs\.\w+\("(\w+)"', inspect.getsource(base)))
    windows = False
    folder = Path(str(sys.modules[kind.__module__].__file__)).parent
    for path in folder.glob("modeling_*.py"):
        text = path.read_text(encoding="utf-8")
        for found in re.finditer(r'config\.(\w+)|getattr\((?:self\.)?config, "(\w+)"', text):
            read |= {found[1], found[2]}
        windows |= "create_sliding_window_causal_mask" in text
    if not windows:  # some hand the window on to a kernel, and make the mask without
        read -= {"sliding_window", "use_sliding_window"}
    if kind.model_type == "mistral":
        read.add("layer_types")  # for which AutoModel takes Ministral's class
    return [name for name in OF_MANY if name not in read]


def _rotary(kind: Any) -> dict[str, Any]:
    if "rope_parameters" not in {field.name for field in fields(kind)}:
        return {}
    parameters = kind().rope_parameters or {}
    theta = kind.default_theta
    if isinstance(theta, dict):
        by_kind = {KINDS.get(name, name): value for name, value in theta.items()}
        return {
            "rope_theta": by_kind["full_attention"],
            "rope_local_base_freq": by_kind["sliding_attention"],
        }
    found: dict[str, Any] = {"rope_theta": theta}
    flat = not any(isinstance(value, dict) for value in parameters.values())
    if flat and parameters.get("partial_rotary_factor") is not None:
        found["partial_rotary_factor"] = parameters["partial_rotary_factor"]
    plain = {"rope_type", "rope_theta", "partial_rotary_factor"}
    each = [parameters] if flat else [one for one in parameters.values() if one]
    if any(one.keys() - plain or one.get("rope_theta", theta) != theta for one in each):
        found["rope_parameters"] = parameters
    return found


def table() -> dict[str, dict[str, Any]]:
    """By ``model_type``, of all decoders of text that transformers has, and of their text parts."""
    found: dict[str, dict[str, Any]] = {}
    names = MODEL_FOR_CAUSAL_LM_MAPPING_NAMES | MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES
    for name in [*names, "voxtral"]:
        kind: Any = CONFIG_MAPPING[name]
        text = kind.sub_configs.get("text_config")
        if text is None:
            found[name] = entry(kind)
            continue
        try:
            of = kind().text_config.model_type
        except (StrictDataclassError, TypeError, ValueError, AttributeError, ImportError):
            # It needs arguments or packages, or does not fit itself.
            continue
        tied = bool(getattr(kind(), "tie_word_embeddings", False))
        found[name] = {"text": of, "defaults": {"tie_word_embeddings": tied}}
        found[of] = entry(type(kind().text_config))
    return dict(sorted(found.items()))


def text() -> str:
    """The file's content."""
    lines = (
        f"  {json.dumps(name)}: {json.dumps(each, sort_keys=True)}"
        for name, each in table().items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")

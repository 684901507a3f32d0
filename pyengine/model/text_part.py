"""The text part of a model that also sees or hears: its config.json and its weights' names.

Such a model's config.json has the text part's settings in ``text_config``, and its weights, which
have ``language_model`` in their names, stand beside those of an encoder, which are not read: images
and sounds are refused where a request brings them. Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError
from pyengine.model.config_defaults import text_kind, with_defaults

PREFIXES = {
    "language_model.model.blocks.": "model.layers.",  # Kimi K2.5, as transformers saves it
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
    "language_model.": "model.",
}
# What training has put before all names.
WRAPPERS = ("module.", "_orig_mod.", "base_model.model.")
# OLMo-Hybrid's files call these norms otherwise in some layers.
INNER = {
    ".attention_layer_norm.": ".input_layernorm.",
    ".feedforward_layer_norm.": ".post_attention_layernorm.",
}
# What stands outside, whatever the text part says.
OUTSIDE = ("architectures", "quantization_config", "tie_word_embeddings", "eos_token_id")


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config.json with what it leaves out, and of the text part if it has other parts.

    Raises:
        ModelLoadError: ``text_config`` is no object.
    """
    text, outside = config.get("text_config"), text_kind(config)
    if text is None:
        # Qwen2-VL's files of 2024 have the text part's settings among the others.
        kind = outside.get("model_type", config.get("model_type"))
        return with_defaults({**config, "model_type": kind})
    if not isinstance(text, Mapping):
        raise ModelLoadError(f"config.json: 'text_config' must be an object, not {text!r}")
    given = {name: config[name] for name in OUTSIDE if config.get(name) is not None}
    return with_defaults({**outside, **text, **given}) | {"text_config": None}


def plain_name(name: str) -> str:
    """A weight's name in a file, as it is in a checkpoint of a language model alone."""
    while name.startswith(WRAPPERS):
        name = next(name.removeprefix(each) for each in WRAPPERS if name.startswith(each))
    for inner, instead in INNER.items():
        name = name.replace(inner, instead)
    for prefix, instead in PREFIXES.items():
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    return name

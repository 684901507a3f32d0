"""The text part of a model that also sees or hears: its config.json and its weights' names.

Such a model's config.json has the text part's settings in ``text_config``, and its weights, which
have ``language_model`` in their names, stand beside those of an encoder, which are not read: images
and sounds are refused where a request brings them. Imports no torch.
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import ModelLoadError

_LLAMA_7B: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "vocab_size": 32_000,
    "max_position_embeddings": 2048,
}
# What text_config leaves out where it is as transformers' class has it.
DEFAULTS: dict[str, dict[str, Any]] = {
    "llama": _LLAMA_7B,
    "mistral": _LLAMA_7B
    | {
        "intermediate_size": 14336,
        "num_key_value_heads": 8,
        "max_position_embeddings": 131_072,
    },
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "vocab_size": 262_208,
        "max_position_embeddings": 131_072,
        "sliding_window": 4096,
    },
}
PREFIXES = {
    "model.language_model.": "model.",
    "model.text_model.": "model.",
    "language_model.model.": "model.",
    "language_model.lm_head.": "lm_head.",
}
# The names of a body that was saved without its head, by what they begin with in a whole model.
BODIES = {
    "model.": ("embed_tokens.", "layers.", "norm."),
    "transformer.": ("wte.", "wpe.", "h.", "ln_f."),
}
# What stands outside, whatever the text part says.
OUTSIDE = ("architectures", "quantization_config", "tie_word_embeddings", "eos_token_id")


def text_part(config: Mapping[str, Any]) -> dict[str, Any]:
    """A model's config.json with the settings of its text part, if it has other parts.

    Raises:
        ModelLoadError: ``text_config`` is no object.
    """
    text = config.get("text_config")
    if text is None:
        return dict(config)
    if not isinstance(text, Mapping):
        raise ModelLoadError(f"config.json: 'text_config' must be an object, not {text!r}")
    outside = {name: config[name] for name in OUTSIDE if config.get(name) is not None}
    defaults = DEFAULTS.get(str(text.get("model_type")), {})
    own = {name: value for name, value in text.items() if value is not None or name not in defaults}
    return defaults | own | outside | {"text_config": None}


def plain_name(name: str) -> str:
    """A weight's name in a file, as it is in a checkpoint of a language model alone."""
    for prefix, instead in PREFIXES.items():
        if name.startswith(prefix):
            return instead + name.removeprefix(prefix)
    for prefix, names in BODIES.items():
        if name.startswith(names):
            return prefix + name
    return name

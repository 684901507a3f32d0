"""Windows that a config.json leaves out are those of transformers' configurations."""

import pytest
from transformers import CONFIG_MAPPING

from pyengine.model.config_defaults import with_defaults
from pyengine.model.windows import layer_windows

KINDS = (
    "cohere2", "cwm", "dots1", "exaone4", "exaone_moe", "gemma2", "gemma3_text", "gemma4_text",
    "gemma4_unified_text", "gpt_oss", "granite_swa", "mellum", "ministral", "mistral", "mixtral",
    "olmo3", "phi3", "qwen2", "qwen3", "smollm3", "starcoder2", "vaultgemma",
)  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_defaults_of_windows_equal_transformers(kind: str) -> None:
    config = CONFIG_MAPPING[kind]()
    layers, window = config.num_hidden_layers, getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None)
    theirs = tuple(
        window if kinds is None or kinds[layer] == "sliding_attention" else None
        for layer in range(layers)
    )
    assert layer_windows(with_defaults({"model_type": kind}), layers) == theirs


def test_null_is_no_window() -> None:
    assert layer_windows({"model_type": "mistral", "sliding_window": None}, 2) == (None, None)

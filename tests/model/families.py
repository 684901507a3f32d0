"""The architectures beside Llama: small ones of each, by what sets it apart."""

from pathlib import Path
from typing import Any

from transformers import MistralConfig, Phi3Config, Qwen2Config, Qwen3Config

from tests.model.llamas import make_model

YARN: dict[str, Any] = {
    "rope_type": "yarn",
    "rope_theta": 10_000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}

FAMILIES: dict[str, tuple[Any, dict[str, Any]]] = {
    "mistral": (MistralConfig, {"sliding_window": None}),
    "mistral, heads apart, a window": (MistralConfig, {"sliding_window": 24, "head_dim": 16}),
    "qwen2": (Qwen2Config, {"sliding_window": 8}),
    "qwen2, a window above the first layer": (
        Qwen2Config,
        {"sliding_window": 20, "use_sliding_window": True, "max_window_layers": 1},
    ),
    "qwen2, tied, yarn": (Qwen2Config, {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "qwen3": (Qwen3Config, {"head_dim": 16}),
    "qwen3, biases, tied, yarn": (
        Qwen3Config,
        {
            "head_dim": 24,
            "attention_bias": True,
            "tie_word_embeddings": True,
            "rope_parameters": YARN,
        },
    ),
    "phi3": (Phi3Config, {"pad_token_id": None}),
}
"""Name, configuration of transformers, and what is changed of :data:`tests.model.llamas.SMALL`."""

ONE_OF_EACH = ("mistral", "qwen2", "qwen3", "phi3")


def make_family(folder: Path, name: str, **changes: Any) -> Any:
    """Save a random model of a family to ``folder`` and return transformers' own."""
    kind, own = FAMILIES[name]
    return make_model(folder, kind, **own, **changes)

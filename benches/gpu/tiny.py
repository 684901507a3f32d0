"""The shape of the tiny form: a small Llama, made up, with the tokens of the demo model."""

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benches.gpu.floors import Shape
from pyengine.demo import MODEL_PATH

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 2048,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-5,
    "rope_theta": 500_000.0,
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}
SHAPE = Shape.of(CONFIG)
TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "generation_config.json")


@contextmanager
def tiny_model() -> Iterator[str]:
    """A folder with the shape and the tokenizer, and no weights, for as long as it is open."""
    with tempfile.TemporaryDirectory() as folder:
        for name in TOKENIZER:
            shutil.copy(MODEL_PATH / name, folder)
        (Path(folder) / "config.json").write_text(json.dumps(CONFIG))
        yield folder

"""Small models that make vectors, and what transformers makes of the same texts."""

import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import AutoModel, Qwen3Config

from pyengine.demo import MODEL_PATH

VOCABULARY = 2100  # more than the demo model, whose tokenizer it has


def embedding_folder(
    folder: Path, pooling: Literal["lasttoken", "mean"] | None, *, normalize: bool = True
) -> Any:
    """Save a random body in the shape of Qwen3-Embedding: without a head, its ``modules.json``
    beside it if it pools; return transformers' own.
    """
    torch.manual_seed(3)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
    )
    model = AutoModel.from_config(config).eval()
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        if (MODEL_PATH / name).is_file():
            shutil.copy(MODEL_PATH / name, folder / name)
    if pooling is not None:
        modules = [("", "Transformer"), ("1_Pooling", "Pooling")]
        modules += [("2_Normalize", "Normalize")] if normalize else []
        listed = [
            {"idx": at, "name": str(at), "path": path, "type": f"sentence_transformers.models.{of}"}
            for at, (path, of) in enumerate(modules)
        ]
        (folder / "modules.json").write_text(json.dumps(listed))
        (folder / "1_Pooling").mkdir()
        flag = {"lasttoken": "pooling_mode_lasttoken", "mean": "pooling_mode_mean_tokens"}[pooling]
        flags = {"word_embedding_dimension": 64, "pooling_mode_cls_token": False, flag: True}
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(flags))
    return model


def expected(
    model: Any, token_ids: list[int], pooling: str, *, normalize: bool = True
) -> NDArray[np.float32]:
    """The vector of a prompt by transformers."""
    with torch.inference_mode():
        states = model(torch.tensor([token_ids])).last_hidden_state[0]
    vector = states.mean(0) if pooling == "mean" else states[-1]
    found: NDArray[np.float32] = (vector / vector.norm() if normalize else vector).numpy()
    return found

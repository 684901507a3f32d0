"""The demonstration model that ships with pyengine.

Two Hugging Face folders lie next to this file: the demo model itself and a
smaller sibling with the same tokenizer, to be used as its draft in
speculative decoding.  Importing this package costs nothing: it does not
import torch.
"""

from pathlib import Path

__all__ = ["DRAFT_PATH", "MODEL_PATH"]

MODEL_PATH: Path = Path(__file__).resolve().parent / "model"
"""Folder of the demo model: config, tokenizer, chat template and bf16 weights."""

DRAFT_PATH: Path = Path(__file__).resolve().parent / "draft"
"""Folder of the draft model, about a quarter of the demo model's parameters."""

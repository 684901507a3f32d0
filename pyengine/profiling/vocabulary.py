"""A model's sizes with the tokens of another tokenizer, for a device that computes nothing.

Masks, penalties and sampling cost by the entry of the vocabulary, so a profile needs a large one.
"""

import contextlib
import json
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tokenizers import Tokenizer

from pyengine.errors import ConfigError
from pyengine.model.weights.folder import config_folder
from pyengine.settings.config import EngineConfig

# Tokens that end an answer, by the names that models give them.
_ENDS = ("<|im_end|>", "<|eot_id|>", "<|endoftext|>", "<|end_of_text|>", "</s>")


@contextlib.contextmanager
def with_tokenizer(config: EngineConfig, path: Path | None) -> Iterator[EngineConfig]:
    """``config`` with the tokens of the tokenizer.json at ``path``, as long as it is entered.

    Args:
        config: The configuration of a simulated device; its model gives all other sizes.
        path: None leaves everything as it is.

    Raises:
        ConfigError: The device is another, or the file holds no tokenizer with an end token.
    """
    if path is None:
        yield config
        return
    if config.device != "simulated":
        raise ConfigError("--tokenizer needs --device simulated: no weights have its tokens")
    with tempfile.TemporaryDirectory(prefix="pyengine-profile-") as made:
        folder = Path(made)
        try:
            text = path.read_text(encoding="utf-8")
            ids = Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
        except Exception as error:  # noqa: BLE001 - tokenizers raises bare Exception
            raise ConfigError(f"no tokenizer in {path}: {error}") from None
        end = next((ids[name] for name in _ENDS if name in ids), None)
        if end is None:
            raise ConfigError(f"{path} has no token that ends an answer: {', '.join(_ENDS)}")
        model = json.loads((config_folder(config.model) / "config.json").read_text("utf-8"))
        model |= {"vocab_size": max(ids.values()) + 1, "eos_token_id": end, "bos_token_id": None}
        (folder / "config.json").write_text(json.dumps(model), encoding="utf-8")
        (folder / "tokenizer.json").write_text(text, encoding="utf-8")
        yield replace(config, model=str(folder))

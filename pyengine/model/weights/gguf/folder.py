"""A GGUF file as a folder in Hugging Face format: what is not weights is written once, and kept.

The folder has config.json, which names the file, tokenizer.json and tokenizer_config.json, with the
chat template. Its name follows from the path, size and time of the file, or of its parts, so that
every process of an engine finds the one that the first has written.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyengine.model.weights.gguf.names import all_parts

FORMAT = 3
"""The version of the folders: raised when what is written into them changes."""
TEMPLATE = "tokenizer.chat_template"


def gguf_folder(path: Path) -> Path:
    """The folder for the GGUF file at ``path``.

    Raises:
        ModelLoadError: The file cannot be read or is not supported; says why.
    """
    path = path.absolute()  # links have the names of parts and of the tokenizer, their targets not
    stats = [(each, each.stat()) for each in all_parts(path) if each.is_file()]
    files = [f"{each} {stat.st_size} {stat.st_mtime_ns}" for each, stat in stats]
    key = " ".join([str(FORMAT), str(path), *files])
    place = _cache() / hashlib.sha256(key.encode()).hexdigest()[:32]
    if (place / "config.json").is_file():
        return place
    texts = _files(path)
    place.parent.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="new-", dir=place.parent))
    for name, text in texts.items():
        (made / name).write_text(text, encoding="utf-8")
    try:
        made.rename(place)
    except OSError:
        # Another process was faster.
        shutil.rmtree(made)
        if not (place / "config.json").is_file():
            raise
    return place


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    place = Path(home) / "pyengine" / "gguf"
    try:
        place.mkdir(parents=True, exist_ok=True)
        if not os.access(place, os.W_OK):
            raise PermissionError
    except OSError:
        return Path(tempfile.gettempdir()) / f"pyengine-gguf-{os.getuid()}"
    return place


def _files(path: Path) -> dict[str, str]:
    from pyengine.model.weights.gguf.config import model_config
    from pyengine.model.weights.gguf.file import open_gguf
    from pyengine.model.weights.gguf.tokenizer import make_tokenizer

    file = open_gguf(path)
    config = model_config(file)
    beside = path.parent / "tokenizer.json"
    if beside.is_file():
        tokenizer = beside.read_text(encoding="utf-8")
    else:
        tokenizer = make_tokenizer(file.metadata, path).to_str()
    return {
        "config.json": json.dumps(config, indent=2),
        "tokenizer.json": tokenizer,
        "tokenizer_config.json": json.dumps(tokenizer_config(file.metadata), indent=2),
    }


def tokenizer_config(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """The tokenizer_config.json of a file: special tokens, and the chat templates."""
    tokens = metadata.get("tokenizer.ggml.tokens") or []
    config: dict[str, Any] = {}
    for name, key in (("bos", "bos"), ("eos", "eos"), ("unk", "unknown"), ("pad", "padding")):
        index = metadata.get(f"tokenizer.ggml.{key}_token_id")
        if isinstance(index, int) and index < len(tokens):
            config[f"{name}_token"] = tokens[index]
    named = [
        {"name": name, "template": template}
        for name, key in (("default", TEMPLATE), ("tool_use", f"{TEMPLATE}.tool_use"))
        if (template := metadata.get(key))
    ]
    return config | ({"chat_template": named} if named else {})

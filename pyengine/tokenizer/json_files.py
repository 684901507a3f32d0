"""JSON files of a model's folder."""

import json
from pathlib import Path
from typing import Any

from pyengine.errors import ModelLoadError


def token_text(value: Any) -> str | None:
    """The spelling of a special token, as tokenizer_config.json has it: text, or an object."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a JSON file of a model's folder; {} where there is no file.

    Raises:
        ModelLoadError: The file is malformed.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return value

"""JSON files of a model's folder."""

import json
from collections.abc import Mapping
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
    value = read_value(path, {})
    if not isinstance(value, dict):
        raise ModelLoadError(f"{path} must hold a JSON object")
    return value


def read_value(path: Path, missing: Any) -> Any:
    """The value in a JSON file of a model's folder; ``missing`` where there is no file.

    Raises:
        ModelLoadError: The file is malformed.
    """
    if path.exists() and not path.is_file():
        raise ModelLoadError(f"cannot read {path}: it is no file")  # a pipe may never end
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return missing
    except (OSError, ValueError, RecursionError) as error:
        raise ModelLoadError(f"cannot read {path}: {error}") from error


def end_token_ids(config: Mapping[str, Any]) -> list[int]:
    """The ids that ``eos_token_id`` of a configuration has.

    Raises:
        ModelLoadError: One is beyond any vocabulary.
    """
    given = config.get("eos_token_id")
    ids = [each for each in (given if isinstance(given, list) else [given]) if type(each) is int]
    if any(each.bit_length() > 31 for each in ids):
        raise ModelLoadError(f"'eos_token_id' is beyond any vocabulary: {given}")
    return ids

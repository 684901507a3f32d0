"""Schemas that a profile constrains its answers with, and how one is chosen.

What they allow goes on for longer than a profile looks, also where tokens are chosen at random.
``schemas.json`` has ``records``, as they are extracted from text, ``tools``, an agent's calls of
several tools, and the ``fields`` of which the schemas of ``mixed`` are made.
"""

from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from pyengine.errors import ConfigError, InvalidRequestError
from pyengine.grammar import Grammar, json_schema

BUILT_IN = ("records", "tools", "mixed")
_MIXED = 50


@cache
def _file() -> Any:
    return msgspec.json.decode(Path(__file__).with_suffix(".json").read_bytes())


def _mixed(number: int) -> dict[str, Any]:
    """One of many schemas that have neither a key nor their order of fields in common."""
    fields = _file()["fields"]
    properties = {
        f"{'abcdefghij'[at]}{number}": fields[(number * 3 + at * (1 + number % 4)) % len(fields)]
        for at in range(3 + number % 6)
    }
    item = {"type": "object", "properties": properties, "required": list(properties)}
    many = _file()["records"]["minItems"]
    return {"type": "array", "minItems": many, "items": item | {"additionalProperties": False}}


def grammars(name: str) -> tuple[Grammar, ...]:
    """The grammars of built-in schemas, or that of the JSON Schema in a file.

    Raises:
        ConfigError: There is neither, or the file holds no schema.
    """
    if name in BUILT_IN:
        mixed = name == "mixed"
        schemas = [_mixed(number) for number in range(_MIXED)] if mixed else [_file()[name]]
        return tuple(map(json_schema, schemas))
    try:
        return (json_schema(Path(name).read_text(encoding="utf-8")),)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"no schema {name!r}: it is no file that can be read ({error}), and built in are "
            f"{', '.join(BUILT_IN)}"
        ) from None
    except InvalidRequestError as error:
        raise ConfigError(f"{name}: {error}") from None

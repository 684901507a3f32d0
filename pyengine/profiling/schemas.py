"""Schemas that a profile constrains its answers with, and how one is chosen.

What they allow goes on for longer than a profile looks, also where tokens are chosen at random.
"""

from pathlib import Path
from typing import Any

from pyengine.errors import ConfigError, InvalidRequestError
from pyengine.grammar import Grammar, json_schema

# More than a context has room for.
_MANY = 1000


def _object(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _call(name: str, **arguments: Any) -> dict[str, Any]:
    return _object(name={"const": name}, arguments=_object(**arguments))


def _words(most: int) -> dict[str, Any]:
    return {"type": "string", "minLength": 1, "maxLength": most}


# Records as they are extracted from text: keys that are forced, short strings, numbers, choices.
RECORDS = {
    "type": "array",
    "minItems": _MANY,
    "items": _object(
        id={"type": "integer", "minimum": 1, "maximum": 999999},
        name=_words(40),
        date={"type": "string", "format": "date"},
        status={"enum": ["open", "in progress", "closed", "cancelled"]},
        amount={"type": "number", "minimum": 0, "maximum": 100000},
        tags={"type": "array", "items": _words(16), "minItems": 1, "maxItems": 4},
        notes={"anyOf": [_words(200), {"type": "null"}]},
        paid={"type": "boolean"},
    ),
}

# An agent's calls of several tools, one after the other.
TOOLS = {
    "type": "array",
    "minItems": _MANY,
    "items": {
        "anyOf": [
            _call("search", query=_words(120), limit={"type": "integer", "minimum": 1,
                                                      "maximum": 100}),
            _call("read_file", path={"type": "string", "pattern": "^/[a-z0-9_./-]{1,80}$"}),
            _call("write_file", path={"type": "string", "pattern": "^/[a-z0-9_./-]{1,80}$"},
                  content=_words(2000)),
            _call("set_reminder", at={"type": "string", "format": "date-time"}, text=_words(200)),
        ]
    },
}  # fmt: skip

_FIELDS: tuple[dict[str, Any], ...] = (
    _words(40),
    {"type": "integer", "minimum": 0, "maximum": 99999},
    {"type": "number", "minimum": -1000, "maximum": 1000},
    {"type": "boolean"},
    {"enum": ["low", "medium", "high", "very high"]},
    {"type": "string", "format": "date"},
    {"anyOf": [_words(120), {"type": "null"}]},
    {"type": "array", "items": _words(16), "minItems": 1, "maxItems": 5},
    {"type": "string", "pattern": "^[A-Z]{2,3}-[0-9]{3,6}$"},
    _object(x={"type": "number"}, y={"type": "number"}),
)


def _mixed(number: int) -> dict[str, Any]:
    """One of many schemas that have neither a key nor their order of fields in common."""
    fields = {
        f"{'abcdefghij'[at]}{number}": _FIELDS[(number * 3 + at * (1 + number % 4)) % len(_FIELDS)]
        for at in range(3 + number % 6)
    }
    return {"type": "array", "minItems": _MANY, "items": _object(**fields)}


BUILT_IN: dict[str, list[dict[str, Any]]] = {
    "records": [RECORDS],
    "tools": [TOOLS],
    "mixed": [_mixed(number) for number in range(50)],
}


def grammars(name: str) -> tuple[Grammar, ...]:
    """The grammars of built-in schemas, or that of the JSON Schema in a file.

    Raises:
        ConfigError: There is neither, or the file holds no schema.
    """
    if name in BUILT_IN:
        return tuple(json_schema(schema) for schema in BUILT_IN[name])
    try:
        return (json_schema(Path(name).read_text(encoding="utf-8")),)
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"no schema {name!r}: it is no file that can be read ({error}), and built in are "
            f"{', '.join(BUILT_IN)}"
        ) from None
    except InvalidRequestError as error:
        raise ConfigError(f"{name}: {error}") from None

"""Short names for what schemas are made of."""

from typing import Any

Schema = dict[str, Any]


def record(properties: dict[str, Any], optional: tuple[str, ...] = (), **more: Any) -> Schema:
    """An object of these properties and no others; all but the optional ones are required."""
    return {
        "type": "object",
        "properties": properties,
        "required": [name for name in properties if name not in optional],
        "additionalProperties": False,
        **more,
    }


def words(most: int = 12, **more: Any) -> Schema:
    """A short string."""
    return {"type": "string", "maxLength": most, **more}


def pattern(regex: str) -> Schema:
    """A string that matches."""
    return {"type": "string", "pattern": regex}


def whole(least: int = 0, most: int = 9999) -> Schema:
    """An integer within bounds."""
    return {"type": "integer", "minimum": least, "maximum": most}


def listed(items: Any, most: int = 2, least: int = 0) -> Schema:
    """A short list."""
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def one_of(*values: Any) -> Schema:
    """An enum."""
    return {"enum": list(values)}


def formatted(name: str) -> Schema:
    """A string of a format."""
    return {"type": "string", "format": name}

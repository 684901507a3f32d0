"""Python types as schemas, and answers as their values.

pydantic is not needed: only what is pydantic's already brings it.
"""

from typing import Any, TypeVar, cast

import msgspec

from pyengine.errors import InvalidRequestError

T = TypeVar("T")


def parse_answer(answer: str | bytes, kind: type[T]) -> T:
    """The value that an answer spells in JSON.

    Args:
        answer: What the model wrote under ``json_schema(kind)``.
        kind: A pydantic model, dataclass, msgspec Struct, TypedDict, or any other type that
            msgspec decodes.

    Raises:
        ValueError: The answer is not one, as when ``max_tokens`` cut it short.
    """
    if (adapter := _pydantic_adapter(kind)) is not None:
        return cast(T, adapter.validate_json(answer))  # its ValidationError is a ValueError
    try:
        return msgspec.json.decode(answer, type=kind)
    except msgspec.MsgspecError as error:
        raise ValueError(f"the answer is no {kind!r}: {error}") from error


def schema_of_type(kind: Any) -> dict[str, Any]:
    """The JSON Schema of a Python type; objects that list their properties have no others.

    Raises:
        InvalidRequestError: There is none.
    """
    try:
        if (adapter := _pydantic_adapter(kind)) is not None:
            schema = adapter.json_schema()
        else:
            schema = msgspec.json.schema(kind)
    except Exception as error:  # of many kinds, some of them pydantic's own
        raise InvalidRequestError(f"{kind!r} has no JSON Schema: {error}") from error
    _close(schema)
    return cast("dict[str, Any]", schema)


def _pydantic_adapter(kind: Any) -> Any:
    """The adapter of a pydantic model or dataclass, None for another type."""
    if not hasattr(kind, "__pydantic_validator__"):
        return None
    import pydantic

    return pydantic.TypeAdapter(kind)


_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
_OF_SCHEMA = ("items", "additionalProperties", "not")


def _close(schema: Any) -> None:
    """Say that an object has no properties but those listed, wherever nothing is said of it.

    A type's decoder would ignore further ones, so letting the model write them wastes tokens.
    """
    if not isinstance(schema, dict):
        return
    if "properties" in schema:
        schema.setdefault("additionalProperties", False)
    for key in _OF_SCHEMAS:
        for each in schema.get(key, ()):
            _close(each)
    for key in _OF_NAMED_SCHEMAS:
        for each in schema.get(key, {}).values():
            _close(each)
    for key in _OF_SCHEMA:
        _close(schema.get(key))

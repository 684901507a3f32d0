"""Python types as schemas, and answers as their values.

pydantic is not needed: only what is pydantic's already brings it.
"""

import typing
from typing import Any, TypeVar, cast

import msgspec

from pyengine.errors import InvalidRequestError

T = TypeVar("T")


def parse_answer(answer: str | bytes, kind: type[T]) -> T:
    """The value that an answer spells in JSON.

    Args:
        answer: The text that the model wrote under ``json_schema(kind)``.
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
        raise ValueError(f"the answer is not a valid {kind!r}: {error}") from error


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
    except Exception as error:  # pydantic raises many kinds
        raise InvalidRequestError(f"{kind!r} has no JSON Schema: {error}") from error
    _close(schema)
    return cast("dict[str, Any]", schema)


def _pydantic_adapter(kind: Any) -> Any:
    """The adapter of a type in which a pydantic model or dataclass occurs, None for another."""
    if not _is_pydantic(kind):
        return None
    import pydantic

    return pydantic.TypeAdapter(kind)


def _is_pydantic(kind: Any) -> bool:
    """Whether a type is pydantic's or has one within: as an argument, or as a field's type."""
    seen: set[int] = set()
    waiting = [kind]
    while waiting:
        each = waiting.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if hasattr(each, "__pydantic_validator__"):
            return True
        waiting += typing.get_args(each)
        if isinstance(each, type) and each.__module__ != "builtins":
            try:
                waiting += typing.get_type_hints(each, include_extras=True).values()
            except (NameError, TypeError, AttributeError):
                continue  # the library decides
    return False


_OF_SCHEMAS = ("anyOf", "oneOf", "prefixItems")
_OF_NAMED_SCHEMAS = ("properties", "$defs", "definitions", "patternProperties")
_OF_SCHEMA = ("items", "additionalProperties")
# With one of these keywords, an object may have properties that are listed elsewhere.
_COMBINED = frozenset({"allOf", "anyOf", "oneOf", "$ref", "not", "if"})


def _close(schema: Any) -> None:
    """Say that an object has no properties but those listed, wherever nothing is said of it.

    A type's decoder would ignore further ones, so letting the model write them wastes tokens. What
    is one of several demands on the same value is left alone: closing it changes their meaning.
    """
    shared = _shared(schema)
    waiting = [schema]
    while waiting:
        each = waiting.pop()
        if not isinstance(each, dict):
            continue
        combined = bool(each.keys() & _COMBINED)
        if "properties" in each and not combined:
            each.setdefault("additionalProperties", False)
        for key in _OF_SCHEMAS:
            if key == "prefixItems" or "properties" not in each:
                waiting += each.get(key, ())
        for key in _OF_NAMED_SCHEMAS:
            for name, inner in each.get(key, {}).items():
                if key not in ("$defs", "definitions") or name not in shared:
                    waiting.append(inner)
        waiting += [each.get(key) for key in _OF_SCHEMA]


def _shared(schema: Any) -> set[str]:
    """The definitions that are one of several demands somewhere, or negated."""
    found: set[str] = set()
    waiting: list[tuple[Any, bool]] = [(schema, False)]
    while waiting:
        each, one_of_several = waiting.pop()
        if isinstance(each, list):
            waiting += [(inner, one_of_several) for inner in each]
        elif isinstance(each, dict):
            ref = each.get("$ref")
            if isinstance(ref, str) and (one_of_several or "properties" in each):
                found.add(ref.rpartition("/")[2])
            for key, inner in each.items():
                several = key == "not" or (key == "allOf" and (len(inner) > 1 or len(each) > 1))
                waiting.append((inner, several))
    return found

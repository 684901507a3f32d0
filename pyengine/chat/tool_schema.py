"""The schema of a tool's arguments, as tools in the wild spell it, made one that can be compiled.

Many frameworks emit schemas that no version of JSON Schema allows, or an old one: null where a
keyword has nothing to say, the type "any", bounds that are exclusive by a boolean. For a tool that
is not strict such a keyword counts as absent, and a warning says so. O(size of the schema).
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import InvalidRequestError
from pyengine.grammar.reading import SchemaReader

TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
_OF_SCHEMA = (
    "items", "additionalProperties", "additionalItems", "not", "contains", "propertyNames", "if",
    "then", "else", "unevaluatedProperties", "unevaluatedItems",
)  # fmt: skip
_OF_SCHEMAS = ("anyOf", "oneOf", "allOf", "prefixItems")
_OF_NAMED_SCHEMAS = (
    "properties", "patternProperties", "$defs", "definitions", "dependentSchemas",
)  # fmt: skip
_OF_STRINGS = ("pattern", "format", "$ref")
_OF_NUMBERS = ("minimum", "maximum", "multipleOf")
_OF_COUNTS = (
    "minLength", "maxLength", "minItems", "maxItems", "minProperties", "maxProperties",
)  # fmt: skip
_BOUNDS = {"exclusiveMinimum": "minimum", "exclusiveMaximum": "maximum"}
_MOST_WARNINGS = 8
# Drafts 4 to 7, which ignore whatever stands beside a `$ref`.
_OLD_DRAFTS = ("json-schema.org/draft-0",)
# What is no assertion about a value: it stays where a root `$ref` of an old draft is replaced.
_NO_ASSERTIONS = ("$schema", "$defs", "definitions", "title", "description")
# What a schema may say that has no properties, without allowing any.
_OF_NOTHING = {"type", "properties", "required", "title", "description", "$schema", "$defs"}


def of_object(schema: Mapping[str, Any]) -> dict[str, Any]:
    """The schema of the objects among what a schema allows: arguments are always an object.

    One whose list of properties is empty, and that says nothing else, has none.

    Raises:
        InvalidRequestError: It allows none.
    """
    schema = _without_root_ref(schema)
    kinds = schema.get("type", "object")
    if kinds == "object" or (isinstance(kinds, list) and "object" in kinds):
        closed = schema.get("properties") == {} and not schema.keys() - _OF_NOTHING
        return {**schema, "type": "object", **({"additionalProperties": False} if closed else {})}
    raise InvalidRequestError(
        f"the arguments of a tool are an object, but its parameters are of type {kinds!r:.100}"
    )


def _without_root_ref(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    """The schema with the target in place of a root ``$ref`` of drafts 4 to 7.

    These drafts ignore what stands beside a ``$ref``: ``type`` could not be added there.
    """
    draft = str(schema.get("$schema", "")).partition("://")[2]
    if "$ref" not in schema or not draft.startswith(_OLD_DRAFTS):
        return schema
    kept = {key: schema[key] for key in _NO_ASSERTIONS if key in schema}
    found = SchemaReader(schema).resolved({"$ref": schema["$ref"]})
    if isinstance(found, Mapping) and "$ref" not in found:
        return {**found, **kept}
    return {**kept, "allOf": [{"$ref": schema["$ref"]}]}  # the compiler says what is wrong with it


def repaired(schema: Mapping[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """A schema without its malformed keywords, and what was left out, by path."""
    warnings: list[str] = []
    made = _repaired(schema, "#", warnings, 0)
    assert isinstance(made, dict)
    if len(warnings) > _MOST_WARNINGS:
        more = len(warnings) - _MOST_WARNINGS
        warnings[_MOST_WARNINGS:] = [f"{more} more keywords are malformed and left out"]
    return made, tuple(warnings)


def _repaired(schema: Any, at: str, warnings: list[str], depth: int) -> Any:
    if not isinstance(schema, Mapping) or depth > 64:  # the compiler refuses deeper ones
        return schema
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in _BOUNDS and isinstance(value, bool):
            bound = schema.get(_BOUNDS[key])
            if value and _is_number(bound):
                made[key] = bound  # as in draft 4
            elif value:
                warnings.append(_left_out(at, key))
        elif _malformed(key, value):
            warnings.append(_left_out(at, key))
        elif key in _OF_SCHEMA:
            made[key] = _repaired(value, f"{at}/{key}", warnings, depth + 1)
        elif key in _OF_SCHEMAS:
            made[key] = [
                _repaired(each, f"{at}/{key}/{index}", warnings, depth + 1)
                for index, each in enumerate(value)
            ]
        elif key in _OF_NAMED_SCHEMAS:
            made[key] = {
                name: _repaired(each, f"{at}/{key}/{name}", warnings, depth + 1)
                for name, each in value.items()
            }
        else:
            made[key] = value
    return made


def _malformed(key: str, value: Any) -> bool:
    """Whether a keyword's value is of a shape that it cannot have."""
    if key == "type":
        kinds = value if isinstance(value, list) else [value]
        return not kinds or not all(isinstance(kind, str) and kind in TYPES for kind in kinds)
    if key == "items":  # a list of schemas in older drafts
        return not isinstance(value, Mapping | bool | list)
    if key in _OF_SCHEMA:
        return not isinstance(value, Mapping | bool)
    if key in _OF_SCHEMAS:
        return not (isinstance(value, list) and value and all(map(_is_schema, value)))
    if key in _OF_NAMED_SCHEMAS:
        return not (isinstance(value, Mapping) and all(map(_is_schema, value.values())))
    if key == "required":
        return not (isinstance(value, list) and all(isinstance(name, str) for name in value))
    if key == "enum":
        return not (isinstance(value, list) and value)
    if key in _OF_STRINGS:
        return not isinstance(value, str)
    if key in _OF_NUMBERS or key in _BOUNDS:
        return not _is_number(value)
    return key in _OF_COUNTS and (not _is_number(value) or value < 0)


def _is_schema(value: Any) -> bool:
    return isinstance(value, Mapping | bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _left_out(at: str, key: str) -> str:
    return f"'{key}' at {at} is malformed and left out"

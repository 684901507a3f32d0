"""Reads a value's types and alternatives from its JSON Schema.

Every part is looked at once, whatever refers to it how often: O(schema) for one reader, however its
references run in circles. What cannot be determined is "any".
"""

from collections.abc import Mapping
from typing import Any

from pyengine.errors import InvalidRequestError

TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})
"""The JSON types; what is an integer is a number too."""

_DEEPEST = 32  # alternatives within alternatives; beyond, any type is assumed
_MOST_HOPS = 64  # from reference to reference
_DEFINITIONS = ("$defs", "definitions")


class SchemaReader:
    """Reads a schema and its parts, which must stay as they are. For one thread at a time."""

    __slots__ = ("_kept", "_needs", "_root", "_types")

    def __init__(self, root: Mapping[str, Any] | bool) -> None:
        """Read within ``root``, to which references refer."""
        self._root = root
        self._types: dict[int, frozenset[str]] = {}  # by the identity of a part
        self._needs: dict[tuple[str, str], set[tuple[str, str]]] = {}
        self._kept: list[Any] = []  # parts made here, kept so that their id() is not reused

    def resolved(self, schema: Any) -> Any:
        """The schema that a schema refers to; itself if the reference cannot be followed."""
        start, hops = schema, 0
        while isinstance(schema, Mapping) and isinstance(ref := schema.get("$ref"), str):
            hops += 1
            if hops > _MOST_HOPS or not ref.startswith("#/"):
                return start
            found: Any = self._root
            for step in ref[2:].split("/"):
                step = step.replace("~1", "/").replace("~0", "~")
                found = found.get(step) if isinstance(found, Mapping) else None
            if found is None:
                return start
            schema = found
        return schema

    def types(self, schema: Any, depth: int = 0) -> frozenset[str]:
        """The JSON types that a value may have, perhaps more.

        Raises:
            InvalidRequestError: The schema is malformed.
        """
        schema = self.resolved(schema)
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            return TYPES
        known = self._types.get(id(schema))
        if known is None:
            self._types[id(schema)] = TYPES  # for references back to it
            known = self._types[id(schema)] = self._found(schema, depth)
        return known

    def _found(self, schema: Mapping[str, Any], depth: int) -> frozenset[str]:
        if (values := values_of(schema)) is not None:
            return frozenset().union(*(json_types_of(value) & TYPES for value in values))
        found = TYPES
        if (kinds := _kinds(schema)) is not None:
            found = frozenset(kinds)
            if "number" in found:
                found |= {"integer"}
        for key in ("anyOf", "oneOf"):
            if (branches := _schemas(schema, key)) is not None:
                found &= frozenset().union(*(self.types(each, depth + 1) for each in branches))
        for each in _schemas(schema, "allOf") or ():
            found &= self.types(each, depth + 1)
        return found

    def branches(self, schema: Any) -> list[Any]:
        """The alternatives of a schema that says nothing but alternatives; else itself.

        Empty where every alternative refers back to the schema.
        """
        made: list[Any] = []
        seen: set[int] = set()
        waiting = [schema]
        while waiting:
            each = self.resolved(waiting.pop())
            if id(each) in seen and isinstance(each, Mapping):
                continue  # already split into alternatives
            seen.add(id(each))
            inner = self._inner(each)
            if inner is None:
                made.append(each)
            else:
                waiting += reversed(inner)
        return made

    def _inner(self, schema: Any) -> list[Any] | None:
        """The alternatives that a schema names itself."""
        if not isinstance(schema, Mapping):
            return None
        for key, other in (("anyOf", "oneOf"), ("oneOf", "anyOf")):
            inner = _schemas(schema, key)
            if inner and not schema.keys() & {"type", "allOf", "enum", "const", other}:
                return inner
        if isinstance(schema.get("type"), list) and values_of(schema) is None:
            made = [{**schema, "type": kind} for kind in dict.fromkeys(_kinds(schema) or ())]
            self._kept += made
            return made
        return None

    def alone(self, schema: Any) -> Mapping[str, Any] | bool:
        """A part with the definitions that it refers to, and those that these refer to."""
        if not isinstance(schema, Mapping):
            return bool(schema)
        waiting = list(self._references(schema))
        needed: set[tuple[str, str]] = set()
        while waiting:
            each = waiting.pop()
            if each in needed or not isinstance(self._root, Mapping):
                continue
            needed.add(each)
            if each not in self._needs:
                self._needs[each] = self._references(self._root[each[0]][each[1]])
            waiting += self._needs[each]
        definitions: dict[str, dict[str, Any]] = {}
        for place, name in sorted(needed):
            definitions.setdefault(place, {})[name] = self._root[place][name]  # type: ignore[index]
        kept = {key: value for key, value in schema.items() if key not in _DEFINITIONS}
        return {**kept, **definitions} if schema is not self._root else schema

    def _references(self, schema: Any) -> set[tuple[str, str]]:
        """The definitions of the root that are named anywhere in it."""
        found: set[tuple[str, str]] = set()
        waiting = [schema]
        while waiting:
            each = waiting.pop()
            if isinstance(each, Mapping):
                waiting += each.values()
                if isinstance(ref := each.get("$ref"), str):
                    found |= self._definition(ref)
            elif isinstance(each, list):
                waiting += each
        return found

    def _definition(self, ref: str) -> set[tuple[str, str]]:
        head, place, *rest = (*ref.split("/", 3), "", "")
        if head != "#" or place not in _DEFINITIONS or not isinstance(self._root, Mapping):
            return set()
        name = rest[0].replace("~1", "/").replace("~0", "~")
        definitions = self._root.get(place)
        known = isinstance(definitions, Mapping) and name in definitions
        return {(place, name)} if known else set()


def values_of(schema: Any) -> list[Any] | None:
    """The values that a schema lists, or None."""
    if isinstance(schema, Mapping):
        if "const" in schema:
            return [schema["const"]]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return list(schema["enum"])
    return None


def json_types_of(value: Any) -> frozenset[str]:
    """The JSON types that a value has."""
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case str():
            return frozenset({"string"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number"} | ({"integer"} if value.is_integer() else set()))
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _kinds(schema: Mapping[str, Any]) -> list[str] | None:
    """``type`` as a list, or None.

    Raises:
        InvalidRequestError: It is neither a string nor a list of strings.
    """
    kinds = schema.get("type")
    if kinds is None:
        return None
    listed = [kinds] if isinstance(kinds, str) else kinds
    if not isinstance(listed, list) or not all(isinstance(kind, str) for kind in listed):
        raise InvalidRequestError("'type' of a schema must be a string or a list of strings")
    return listed


def _schemas(schema: Mapping[str, Any], key: str) -> list[Any] | None:
    """The schemas under a keyword, or None.

    Raises:
        InvalidRequestError: It is no list of schemas.
    """
    given = schema.get(key)
    if given is None:
        return None
    if not isinstance(given, list) or not all(isinstance(each, Mapping | bool) for each in given):
        raise InvalidRequestError(f"'{key}' of a schema must be a list of schemas")
    return given

"""The parameters of a function, one by one, for formats that do not write them as one JSON object.

Qwen3-coder writes each between tags, strings as they are; Python-like formats write literals.
What such a format can hold a value to, and how the text is read back as JSON, is decided here, from
the same schema.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.grammar.algebra import any_of, choice, free_text, json_schema, sequence, text
from pyengine.grammar.description import Grammar

TYPES = frozenset({"string", "integer", "number", "boolean", "null", "array", "object"})

# What a schema of an object may say that one grammar after the other does say.
_PLAIN = frozenset(
    "type properties required additionalProperties title description default examples $defs "
    "definitions $schema $id $comment deprecated".split()
)
_OF_STRINGS = ("pattern", "format", "minLength", "maxLength")
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function.

    Attributes:
        schema: Of its value; stands alone.
        types: The JSON types that its value may have.
    """

    name: str
    schema: Mapping[str, Any] | bool
    required: bool
    types: frozenset[str]

    def plain_grammar(self, until: str, strict: bool) -> Grammar:
        """The value with strings as they are, without ``until`` in it.

        Raises:
            InvalidRequestError: ``strict``, and the schema asks more of a string than to be one of
                some.
        """
        made: list[Grammar] = []
        for branch in _branches(self.schema, self.schema):
            types = _types(branch, self.schema)
            if "string" not in types:
                made.append(_json(branch, self.schema, strict))
            elif (values := _values(branch)) is not None:
                made.append(choice(v if isinstance(v, str) else json.dumps(v) for v in values))
            else:
                asked = [key for key in _OF_STRINGS if isinstance(branch, dict) and key in branch]
                if strict and asked:
                    raise InvalidRequestError(
                        f"'{asked[0]}' of parameter '{self.name}' cannot be enforced in this "
                        "model's format of tool calls"
                    )
                return free_text([until])
        return any_of(*made)

    def literal_grammar(self, strict: bool) -> Grammar:
        """The value as a literal of Python, whose strings and numbers are also JSON's."""
        made: list[Grammar] = []
        for branch in _branches(self.schema, self.schema):
            types = _types(branch, self.schema)
            if (values := _values(branch)) is not None:
                made.append(choice(_literal(value) for value in values))
            elif types == {"boolean"}:
                made.append(choice(["True", "False"]))
            elif types == {"null"}:
                made.append(text("None"))
            else:
                made.append(_json(branch, self.schema, strict))
        return any_of(*made)

    @property
    def is_text(self) -> bool:
        """Whether every value is a string, so that its text can be passed on as it comes."""
        return self.types == {"string"}

    def json_of(self, plain: str) -> str:
        """The JSON of a value whose strings are written as they are.

        Where a string and something else are allowed, what reads as the other is the other.
        """
        if not self.is_text:
            spelled = plain.strip()
            spelled = _PYTHON.get(spelled, spelled)
            try:
                value = msgspec.json.decode(spelled)
            except (msgspec.DecodeError, RecursionError):
                value = None if spelled == "null" else plain
            if not isinstance(value, str) and _type_of(value) & self.types:
                return spelled
        return json.dumps(plain, ensure_ascii=False)


@dataclass(frozen=True)
class Parameters:
    """What a function takes.

    Attributes:
        listed: In the order of the schema.
        others: Whether it takes parameters that are not listed.
    """

    listed: tuple[Parameter, ...]
    others: bool

    def named(self, name: str) -> Parameter:
        """The parameter of that name; one of any type if it is not listed."""
        for parameter in self.listed:
            if parameter.name == name:
                return parameter
        return Parameter(name, True, False, TYPES)


def parameters_of(schema: Mapping[str, Any], strict: bool) -> Parameters:
    """The parameters that a schema of an object describes.

    Raises:
        InvalidRequestError: ``strict``, and the schema says more of the object than that.
    """
    found = _resolved(schema, schema)
    if not isinstance(found, Mapping):
        found = {}
    if strict:
        for key in found.keys() - _PLAIN:
            raise InvalidRequestError(
                f"'{key}' of a tool's parameters cannot be enforced in this model's format of "
                "tool calls"
            )
    properties = found.get("properties") or {}
    required = found.get("required") or ()
    listed = tuple(
        Parameter(name, alone := _alone(each, schema), name in required, _types(alone, alone))
        for name, each in properties.items()
    )
    return Parameters(listed, not listed and found.get("additionalProperties", True) is not False)


def xml_parameter(parameter: Parameter, strict: bool) -> Grammar:
    """One parameter as Qwen3-coder writes it: its value on lines of its own, strings as they are.

    Raises:
        InvalidRequestError: As :meth:`Parameter.plain_grammar`.
    """
    value = parameter.plain_grammar("</parameter>", strict)
    return sequence(
        text(f"<parameter={parameter.name}>\n"),
        value.tagged(("argument", parameter)),
        text("\n</parameter>"),
    )


def _alone(schema: Any, root: Mapping[str, Any]) -> Mapping[str, Any] | bool:
    """A part of ``root`` with the definitions that it may refer to."""
    if not isinstance(schema, Mapping):
        return bool(schema)
    definitions = {key: root[key] for key in ("$defs", "definitions") if key in root}
    return {**schema, **definitions} if "$ref" in json.dumps(schema) else schema


def _json(branch: Any, root: Any, strict: bool) -> Grammar:
    alone = _alone(branch, root) if isinstance(root, Mapping) else branch
    return json_schema(alone, unenforceable="refuse" if strict else "ignore")


def _resolved(schema: Any, root: Any) -> Any:
    """What a schema refers to, if that is all it does; itself if it cannot be followed."""
    seen = set()
    while isinstance(schema, Mapping) and isinstance(ref := schema.get("$ref"), str):
        if ref in seen or not ref.startswith("#/"):
            return schema
        seen.add(ref)
        found: Any = root
        for step in ref[2:].split("/"):
            step = step.replace("~1", "/").replace("~0", "~")
            found = found.get(step) if isinstance(found, Mapping) else None
        if found is None:
            return schema
        schema = found
    return schema


def _branches(schema: Any, root: Any) -> Iterator[Any]:
    """The alternatives of a schema that says nothing but alternatives; else itself."""
    schema = _resolved(schema, root)
    if isinstance(schema, Mapping):
        for key in ("anyOf", "oneOf"):
            branches = schema.get(key)
            if isinstance(branches, list) and branches and not schema.keys() & {"type", "allOf"}:
                for branch in branches:
                    yield from _branches(branch, root)
                return
        kinds = schema.get("type")
        if isinstance(kinds, list) and "enum" not in schema and "const" not in schema:
            for kind in kinds:
                yield {**schema, "type": kind}
            return
    yield schema


def _types(schema: Any, root: Any, depth: int = 0) -> frozenset[str]:
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping) or depth > 8:
        return TYPES
    if (values := _values(schema)) is not None:
        return frozenset().union(*(_type_of(value) & TYPES for value in values))
    kinds = schema.get("type")
    found = TYPES
    if isinstance(kinds, str | list):
        found = frozenset([kinds] if isinstance(kinds, str) else kinds)
        if "number" in found:
            found |= {"integer"}
    for key in ("anyOf", "oneOf"):
        if isinstance(branches := schema.get(key), list):
            found &= frozenset().union(*(_types(each, root, depth + 1) for each in branches))
    if isinstance(branches := schema.get("allOf"), list):
        for each in branches:
            found &= _types(each, root, depth + 1)
    return found


def _values(schema: Any) -> list[Any] | None:
    """The values that a schema lists, or None."""
    if isinstance(schema, Mapping):
        if "const" in schema:
            return [schema["const"]]
        if isinstance(schema.get("enum"), list) and schema["enum"]:
            return list(schema["enum"])
    return None


def _type_of(value: Any) -> frozenset[str]:
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


def _literal(value: Any) -> str:
    """A value as Python writes it, with JSON's quotes."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)

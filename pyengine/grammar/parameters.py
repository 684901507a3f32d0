"""The parameters of a function, one by one, for formats that do not write them as one JSON object.

Qwen3-coder writes each between tags, strings as they are; Python-like formats write literals.
What such a format can hold a value to, and how the text is read back as JSON, is decided here, from
the same schema.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.grammar.algebra import (
    KeyOrder,
    any_of,
    choice,
    free_text,
    json_schema,
    sequence,
    text,
)
from pyengine.grammar.description import Grammar, bounded
from pyengine.grammar.reading import TYPES, SchemaReader, json_types_of, values_of

# Keywords of an object's schema that a grammar of its parameters enforces.
_PLAIN = frozenset(
    "type properties required additionalProperties title description default examples $defs "
    "definitions $schema $id $comment deprecated".split()
)
_SAYS_NOTHING = frozenset(
    "type title description default examples $defs definitions $schema $id $comment deprecated "
    "readOnly writeOnly".split()
)
# Further keywords that a schema of type string may have and that do not apply to strings.
_OF_OTHERS = frozenset(
    "properties required additionalProperties patternProperties propertyNames minProperties "
    "maxProperties items prefixItems minItems maxItems uniqueItems contains minimum maximum "
    "exclusiveMinimum exclusiveMaximum multipleOf".split()
)
_PYTHON = {"True": "true", "False": "false", "None": "null"}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a function.

    Attributes:
        given: The schema of its value, as it stands within the function's.
        types: The JSON types that its value may have.
        tool: Name of the tool, for refusals and warnings.
        key_order: The order of the objects in its value.
    """

    name: str
    given: Mapping[str, Any] | bool
    required: bool
    types: frozenset[str]
    tool: str | None = None
    key_order: KeyOrder = "schema"
    _reader: SchemaReader = field(default_factory=lambda: SchemaReader(True), repr=False)

    def plain_grammar(self, until: str, strict: bool) -> Grammar:
        """The value with strings as they are, without ``until`` in it.

        Raises:
            InvalidRequestError: One of the values that it may have holds ``until``; or ``strict``,
                and the schema asks more of a string than to be one of some.
        """
        if strict and (asked := self.ignored()):
            raise InvalidRequestError(
                f"'{asked[0]}' of parameter '{self.name}' cannot be enforced in this "
                "model's format of tool calls"
            )
        branches = self._branches()
        if any(self._is_free(branch) for branch in branches):
            return free_text([until])
        return any_of(*bounded(self._plain(branch, until, strict) for branch in branches))

    def literal_grammar(self, strict: bool) -> Grammar:
        """The value as a literal of Python, whose strings and numbers are also JSON's."""
        return any_of(*bounded(self._literal(branch, strict) for branch in self._branches()))

    def ignored(self) -> list[str]:
        """The keywords that :meth:`plain_grammar` enforces for no value, sorted."""
        asked: set[str] = set()
        for branch in self._branches():
            if self._is_free(branch) and isinstance(branch, Mapping):
                others = _OF_OTHERS if branch.get("type") == "string" else frozenset()
                asked |= branch.keys() - _SAYS_NOTHING - others
        return sorted(asked)

    def _branches(self) -> list[Any]:
        branches = self._reader.branches(self.given)
        if not branches:
            raise InvalidRequestError(f"parameter '{self.name}' can have no value")
        return branches

    def _is_free(self, branch: Any) -> bool:
        """Whether a branch is text of which nothing can be asked."""
        return "string" in self._reader.types(branch) and values_of(branch) is None

    def _plain(self, branch: Any, until: str, strict: bool) -> Grammar:
        values = values_of(branch) if "string" in self._reader.types(branch) else None
        if values is None:
            return self._json(branch, strict)
        written = [v if isinstance(v, str) else json.dumps(v) for v in values]
        for each in written:
            if until in each:
                raise InvalidRequestError(
                    f"a value of parameter '{self.name}' holds '{until}', which ends a value in "
                    "this model's format of tool calls"
                )
        return choice(written)

    def _literal(self, branch: Any, strict: bool) -> Grammar:
        types = self._reader.types(branch)
        if (values := values_of(branch)) is not None:
            return choice(_literal(value) for value in values)
        if types == {"boolean"}:
            return choice(["True", "False"])
        if types == {"null"}:
            return text("None")
        return self._json(branch, strict)

    def _json(self, branch: Any, strict: bool) -> Grammar:
        alone = self._reader.alone(branch)
        name = f"parameter '{self.name}'"
        if self.tool is not None:
            name = f"tool '{self.tool}', {name}"
        return json_schema(
            alone,
            unenforceable="refuse" if strict else "ignore",
            key_order=self.key_order,
            name=name,
        )

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
            if not isinstance(value, str) and json_types_of(value) & self.types:
                return spelled
        return json.dumps(plain, ensure_ascii=False)


@dataclass(frozen=True)
class Parameters:
    """The parameters of a function.

    Attributes:
        listed: In the order of the schema.
        others: Whether it takes parameters that are not listed.
        ignored: Keywords of the whole that are not enforced.
    """

    listed: tuple[Parameter, ...]
    others: bool
    ignored: tuple[str, ...] = ()

    def named(self, name: str) -> Parameter:
        """The parameter of that name; one of any type if it is not listed."""
        for parameter in self.listed:
            if parameter.name == name:
                return parameter
        return Parameter(name, True, False, TYPES)


def parameters_of(
    schema: Mapping[str, Any],
    strict: bool,
    tool: str | None = None,
    key_order: KeyOrder = "schema",
) -> Parameters:
    """The parameters that a schema of an object describes, a tool's if that is named.

    ``key_order`` is that of the objects in their values.

    Raises:
        InvalidRequestError: The schema is malformed; or ``strict``, and it says more of the object
            than that.
    """
    reader = SchemaReader(schema)
    found = reader.resolved(schema)
    if not isinstance(found, Mapping):
        found = {}
    ignored = sorted(found.keys() - _PLAIN)
    if strict and ignored:
        raise InvalidRequestError(
            f"'{ignored[0]}' of a tool's parameters cannot be enforced in this model's format of "
            "tool calls"
        )
    properties = _properties(found)
    required = _required(found)
    listed = tuple(
        Parameter(name, each, name in required, reader.types(each), tool, key_order, reader)
        for name, each in properties.items()
    )
    others = not listed and found.get("additionalProperties", True) is not False
    return Parameters(listed, others, tuple(ignored))


def ignored_in(schema: Mapping[str, Any], *, values: bool = True) -> list[str]:
    """Parts of a schema that are not enforced when calls are written parameter by parameter.

    One sentence each; ``values``: also what strings as they are (:func:`tagged_parameter`) leave
    out.

    Raises:
        InvalidRequestError: The schema is malformed.
    """
    found = parameters_of(schema, strict=False)
    made = [f"'{key}' of the parameters is not enforced" for key in found.ignored]
    for parameter in found.listed if values else ():
        name = parameter.name
        made += [f"'{key}' of parameter '{name}' is not enforced" for key in parameter.ignored()]
    return made


def _properties(schema: Mapping[str, Any]) -> Mapping[str, Any]:
    properties = schema.get("properties")
    if properties is None:
        return {}
    if not isinstance(properties, Mapping):
        raise InvalidRequestError("'properties' of a tool's parameters must be an object")
    for name, each in properties.items():
        if not isinstance(each, Mapping | bool):
            raise InvalidRequestError(f"the schema of parameter '{name}' must be an object")
    return properties


def _required(schema: Mapping[str, Any]) -> frozenset[str]:
    required = schema.get("required")
    if required is None:
        return frozenset()
    if not isinstance(required, list | tuple) or not all(isinstance(r, str) for r in required):
        raise InvalidRequestError("'required' of a tool's parameters must be a list of strings")
    return frozenset(required)


@dataclass(frozen=True)
class ParameterTags:
    """Texts that a format writes around the name of a parameter and around its value.

    The defaults are Qwen3-coder's, whose values stand on lines of their own.
    """

    before: str = "<parameter="
    between: str = ">\n"
    after: str = "\n</parameter>"

    @property
    def end(self) -> str:
        """The marker that ends a value, and that no value may hold."""
        return self.after.strip()

    @property
    def name(self) -> re.Pattern[str]:
        """The names that can be written."""
        return re.compile(f"[^<>\n{re.escape(self.between.strip()[0])}]+")

    def check(self, parameter: Parameter) -> None:
        """Refuse a parameter whose name cannot be written.

        Raises:
            InvalidRequestError: Naming it.
        """
        if not self.name.fullmatch(parameter.name):
            raise InvalidRequestError(
                f"the name of parameter '{parameter.name}' cannot be written in this model's "
                "format of tool calls, which has it in a tag"
            )


QWEN_TAGS = ParameterTags()


def tagged_parameter(
    parameter: Parameter, strict: bool, tags: ParameterTags = QWEN_TAGS
) -> Grammar:
    """One parameter between tags, strings as they are.

    Raises:
        InvalidRequestError: As :meth:`Parameter.plain_grammar`; or its name cannot stand in a tag.
    """
    tags.check(parameter)
    value = parameter.plain_grammar(tags.end, strict)
    return sequence(
        text(f"{tags.before}{parameter.name}{tags.between}"),
        value.tagged(("argument", parameter)),
        text(tags.after),
    )


def _literal(value: Any) -> str:
    """A value as Python writes it, with JSON's quotes."""
    if value is None or isinstance(value, bool):
        return repr(value)
    return json.dumps(value, ensure_ascii=False)

"""Values as Gemma 4 writes them: like JSON, with bare keys and with strings between marks.

::

    {city:<|"|>Oslo<|"|>,days:[1,2],more:{on:true}}

A string is what stands between two marks, unescaped. Keys come in the order in which the model was
shown them: sorted, without regard to case; or in any order.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pyengine.errors import InvalidRequestError
from pyengine.grammar.algebra import (
    KeyOrder,
    any_of,
    choice,
    free_text,
    json_schema,
    regex,
    repeat,
    sequence,
    text,
)
from pyengine.grammar.description import Grammar, bounded
from pyengine.grammar.listed import listed
from pyengine.grammar.reading import SchemaReader, values_of

KEY = r"[A-Za-z_][A-Za-z0-9_.-]*"
"""The keys that can be written bare."""

_ALWAYS = frozenset(
    "type title description default examples $defs definitions $schema $id $comment deprecated "
    "readOnly writeOnly".split()
)
_OF = {
    "string": frozenset[str](),
    "array": frozenset({"items", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
}
_NUMBER = r"-?(0|[1-9][0-9]{0,17})(\.[0-9]{1,17})?([eE][-+]?[0-9]{1,3})?"
_DEEPEST = 12  # values within values that a schema describes; below, any value
_ANY_DEPTH = 4  # values within a value of which nothing is said


class KeyedValues:
    """Grammars of the values of one tool's schema; for one thread at a time.

    Attributes:
        ignored: What is not enforced of the schemas so far, one sentence each.
    """

    def __init__(
        self, quote: str, reader: SchemaReader, strict: bool, name: str, key_order: KeyOrder
    ) -> None:
        """Write strings between two ``quote``; ``name`` says of what, in refusals and warnings."""
        self.ignored: list[str] = []
        self._quote = quote
        self._reader = reader
        self._strict = strict
        self._name = name
        self._key_order = key_order

    def grammar(self, schema: Any, depth: int = 0) -> Grammar:
        """A value that satisfies a schema.

        Raises:
            InvalidRequestError: There is none; or of a strict tool the schema asks for what cannot
                be enforced.
        """
        branches = self._reader.branches(schema)
        if not branches:
            raise InvalidRequestError(f"{self._name} can have no value")
        return any_of(*bounded(self._branch(branch, depth) for branch in branches))

    def any(self) -> Grammar:
        """Any value, with values in it :data:`_ANY_DEPTH` deep."""
        scalar = any_of(self._string(), regex(_NUMBER), choice(["true", "false", "null"]))
        made = scalar
        for _ in range(_ANY_DEPTH):
            made = any_of(scalar, self._list_of(made, 0, None), self._any_object(made))
        return made

    def _branch(self, branch: Any, depth: int) -> Grammar:
        if (values := values_of(branch)) is not None:
            return choice(self._written(value) for value in values)
        if not isinstance(branch, Mapping) or depth == _DEEPEST:
            self._ask(branch if isinstance(branch, Mapping) else (), frozenset())
            return self.any()
        types = self._reader.types(branch)
        if types <= {"number", "integer", "boolean", "null"}:
            alone = self._reader.alone(branch)
            return json_schema(
                alone,
                unenforceable="refuse" if self._strict else "ignore",
                name=self._name,
            )
        kind = next((kind for kind in _OF if types == {kind}), None)
        if kind is None and "properties" in branch:
            kind = "object"
        if kind is None and "items" in branch:
            kind = "array"
        self._ask(branch, _OF.get(kind or "", frozenset()))
        match kind:
            case "string":
                return self._string()
            case "array":
                return self._array(branch, depth)
            case "object":
                return self._object(branch, depth)
        return self.any()

    def _ask(self, asked: Iterable[str], enforced: frozenset[str]) -> None:
        """Note, or refuse, the keywords that are not enforced."""
        for key in sorted(set(asked) - _ALWAYS - enforced):
            if self._strict:
                raise InvalidRequestError(
                    f"{self._name}: '{key}' cannot be enforced in this model's format of tool calls"
                )
            self.ignored.append(f"'{key}' of {self._name} is not enforced")

    def _string(self) -> Grammar:
        quote = text(self._quote)
        return sequence(quote, free_text([self._quote]), quote)

    def _array(self, schema: Mapping[str, Any], depth: int) -> Grammar:
        least, most = schema.get("minItems", 0), schema.get("maxItems")
        if not isinstance(least, int) or not (most is None or isinstance(most, int)):
            raise InvalidRequestError(f"{self._name}: bounds of an array must be whole numbers")
        item = self.grammar(schema.get("items", True), depth + 1)
        return self._list_of(item, least, most)

    def _list_of(self, item: Grammar, least: int, most: int | None) -> Grammar:
        items = repeat(item, min=least, max=most, separator=text(","))
        return sequence(text("["), items, text("]"))

    def _any_object(self, value: Grammar) -> Grammar:
        pairs = repeat(sequence(regex(KEY), text(":"), value), separator=text(","))
        return sequence(text("{"), pairs, text("}"))

    def _object(self, schema: Mapping[str, Any], depth: int) -> Grammar:
        properties = schema.get("properties") or {}
        if not isinstance(properties, Mapping):
            raise InvalidRequestError(f"{self._name}: 'properties' must be an object")
        if not properties and (others := schema.get("additionalProperties", True)) is not False:
            return self._any_object(self.grammar(others, depth + 1))
        required = schema.get("required") or ()

        def pairs() -> Iterator[tuple[bool, Grammar]]:
            for key in in_order(properties):
                value = self.grammar(properties[key], depth + 1)
                yield key in required, sequence(text(f"{self.key(key)}:"), value)

        return sequence(text("{"), *listed(pairs(), ",", self._key_order), text("}"))

    def key(self, key: str) -> str:
        """A key, bare.

        Raises:
            InvalidRequestError: It cannot be written so.
        """
        if not re.fullmatch(KEY, key):
            raise InvalidRequestError(
                f"{self._name}: the key '{key}' cannot be written in this model's format of tool "
                "calls, which has keys without quotes"
            )
        return key

    def _written(self, value: Any) -> str:
        """A value of a list of values."""
        match value:
            case str():
                if self._quote in value:
                    raise InvalidRequestError(
                        f"{self._name}: a value holds '{self._quote}', which ends a string in "
                        "this model's format of tool calls"
                    )
                return f"{self._quote}{value}{self._quote}"
            case list():
                return f"[{','.join(map(self._written, value))}]"
            case dict():
                pairs = (f"{self.key(key)}:{self._written(value[key])}" for key in in_order(value))
                return f"{{{','.join(pairs)}}}"
        return json.dumps(value)


def in_order(keys: Iterable[str]) -> list[str]:
    """Keys as this notation has them."""
    return sorted(keys, key=str.lower)

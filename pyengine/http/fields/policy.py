"""The policy for fields of requests that the types of requests do not have.

::

    body ──► strict decoder of the type ──► request           every field is honoured: nothing more
               │ a field that it does not have
               ▼
             plain objects ──► sift, by the table ──► request, warnings

A field of a type is honoured. Any other is looked up in the table: a hint, and null, change no
answer and are left out, hints with a warning; an alias is another name of an honoured field; a
refused one would change the answer, unless its value is neutral. What the table does not have is
unknown, and refused with the nearest known name.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches
from functools import cache
from typing import Any, TypeVar, cast

import msgspec
from msgspec import inspect

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.http.fields.effects import Alias, Effect, Hint, Refused, Table
from pyengine.settings.server import UnknownFields
from pyengine.validation.decoding import refusal

T = TypeVar("T")

_LONGEST_NAME = 100
_LONGEST_HEADER = 2000
_INDEX = re.compile(r"\[\d+\]")


class FieldPolicy:
    """Reads values from outside by a table. Any thread, any number of requests."""

    def __init__(self, table: Table, unknown: UnknownFields = "refuse") -> None:
        """``unknown``: what becomes of fields that neither a type nor the table has."""
        self._table = table
        self._unknown = unknown
        self._effects: dict[type, dict[str, Effect]] = {}

    def decode(
        self,
        body: bytes,
        kind: type[T],
        warnings: dict[str, None],
        strict: msgspec.ValidationError,
    ) -> T:
        """A body that the strict decoder of ``kind`` has refused.

        Raises:
            InvalidRequestError: Naming the field at fault.
            msgspec.DecodeError, UnicodeDecodeError, RecursionError: It is no JSON.
        """
        try:
            value = msgspec.json.decode(body)
        except msgspec.ValidationError:  # a number that is too large for any type
            raise strict from None
        return self._sifted(value, kind, warnings, "")

    def convert(self, value: Any, kind: type[T], warnings: dict[str, None], at: str = "") -> T:
        """``value`` as ``kind``; ``at`` is its path in the request. May change ``value``.

        Raises:
            InvalidRequestError: Naming the field at fault.
        """
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError:
            return self._sifted(value, kind, warnings, at)

    def _sifted(self, value: Any, kind: type[T], warnings: dict[str, None], at: str) -> T:
        self._sift(value, _options(inspect.type_info(kind)), at, warnings)
        try:
            return msgspec.convert(value, kind, str_keys=True)
        except msgspec.ValidationError as error:
            raise refusal(error, kind, at) from None

    def effects(self, kind: type[msgspec.Struct]) -> dict[str, Effect]:
        """The effects of all fields that the table has for ``kind``, by their names."""
        if (known := self._effects.get(kind)) is not None:
            return known
        fields = _fields(kind)
        found: dict[str, Effect] = {}
        for base in reversed(kind.__mro__):
            for name, effect in self._table.get(base, {}).items():
                here = effect if isinstance(effect, Hint) else effect.at(fields)
                if here is not None and name not in fields:
                    found[name] = here
        self._effects[kind] = found
        return found

    def _sift(
        self, value: Any, kinds: tuple[inspect.Type, ...], at: str, warnings: dict[str, None]
    ) -> None:
        """Leave the fields of honoured types in ``value``, all the way down."""
        if isinstance(value, list):
            inner = tuple(
                option
                for kind in kinds
                if isinstance(kind, inspect.ListType | inspect.VarTupleType)
                for option in _options(kind.item_type)
            )
            if any(not isinstance(kind, _LEAVES) for kind in inner):
                for index, item in enumerate(value):
                    self._sift(item, inner, f"{at}[{index}]", warnings)
        elif isinstance(value, dict) and (kind := _struct(kinds, value)) is not None:
            self._sift_object(value, kind, at, warnings)

    def _sift_object(
        self, value: dict[str, Any], kind: inspect.StructType, at: str, warnings: dict[str, None]
    ) -> None:
        fields = _fields(kind.cls)
        for name in list(value):
            path = f"{at}.{name[:_LONGEST_NAME]}" if at else name[:_LONGEST_NAME]
            if name in fields:
                value[name] = _whole(value[name], fields[name])
                self._sift(value[name], fields[name], path, warnings)
            elif name != kind.tag_field:
                self._leave_out(value, name, kind.cls, path, warnings)

    def _leave_out(
        self,
        value: dict[str, Any],
        name: str,
        kind: type[msgspec.Struct],
        path: str,
        warnings: dict[str, None],
    ) -> None:
        """Take a field out of ``value`` that its type does not have."""
        given, effect, shown = value.pop(name), self.effects(kind).get(name), _INDEX.sub("[]", path)
        if effect is None:
            if self._unknown == "refuse":
                raise self._no_such(kind, name, path)
            warnings[f"'{shown}' is not known and is left out."] = None
        elif given is None:
            return
        elif isinstance(effect, Hint):
            warnings[f"'{shown}' cannot change this answer and is left out."] = None
        elif isinstance(effect, Alias):
            _rename(value, name, effect, given, path)
        elif any(_same(given, neutral) for neutral in effect.neutral):
            warnings[f"'{shown}' asks for what is done anyway."] = None
        else:
            raise _unsupported(effect, path)

    def _no_such(
        self, kind: type[msgspec.Struct], name: str, path: str
    ) -> UnsupportedParameterError:
        others = [name for name, known in self.effects(kind).items() if isinstance(known, Alias)]
        near = _inner(kind, name) or get_close_matches(
            name[:_LONGEST_NAME], [*_fields(kind), *others], 1, 0.7
        )
        meant = f" Did you mean '{near[0]}'?" if near else ""
        return UnsupportedParameterError(f"Unknown parameter: '{path}'.{meant}", param=path)


# Types that have no fields inside.
_LEAVES = (
    inspect.StrType, inspect.IntType, inspect.FloatType, inspect.BoolType, inspect.NoneType,
    inspect.LiteralType, inspect.AnyType, inspect.DictType,
)  # fmt: skip


def _options(kind: inspect.Type) -> tuple[inspect.Type, ...]:
    """The types that a union is one of."""
    return kind.types if isinstance(kind, inspect.UnionType) else (kind,)


def _struct(kinds: tuple[inspect.Type, ...], value: dict[str, Any]) -> inspect.StructType | None:
    """The struct of ``kinds`` that ``value`` is meant to be."""
    structs = [kind for kind in kinds if isinstance(kind, inspect.StructType)]
    if len(structs) == 1:
        return structs[0]
    for kind in structs:
        if kind.tag_field is not None and value.get(kind.tag_field) == kind.tag:
            return kind
    return None


@cache
def _fields(kind: type[msgspec.Struct]) -> dict[str, tuple[inspect.Type, ...]]:
    info = cast("inspect.StructType", inspect.type_info(kind))
    return {field.encode_name: _options(field.type) for field in info.fields}


def _inner(kind: type[msgspec.Struct], name: str) -> list[str]:
    """The fields of that name in objects that a type has, as it has them in their place."""
    return [
        f"{outer}.{name}"
        for outer, options in _fields(kind).items()
        for option in options
        if isinstance(option, inspect.StructType) and name in _fields(option.cls)
    ]


def _whole(given: Any, kinds: tuple[inspect.Type, ...]) -> Any:
    """16 for 16.0, which JSON Schema calls an integer too, where an integer is wanted."""
    if not isinstance(given, float) or not given.is_integer():
        return given
    wanted = {type(kind) for kind in kinds}
    return int(given) if inspect.IntType in wanted and inspect.FloatType not in wanted else given


def _same(given: Any, neutral: Any) -> bool:
    """Whether a value is a neutral one; true is not 1, though Python's are equal."""
    return bool(given == neutral) and isinstance(given, bool) == isinstance(neutral, bool)


def _rename(value: dict[str, Any], name: str, alias: Alias, given: Any, path: str) -> None:
    read = next((new for old, new in alias.instead if _same(given, old)), given)
    if value.get(alias.of) not in (None, read):
        raise InvalidRequestError(f"'{path}' and '{alias.of}' mean the same; give one.", param=path)
    if read is not None:
        value[alias.of] = read


def _unsupported(effect: Refused, path: str) -> UnsupportedParameterError:
    more = f": use '{effect.say}'" if effect.say else ""
    if effect.neutral and not effect.say:
        more = f"; only {msgspec.json.encode(effect.neutral[0]).decode()} is"
    return UnsupportedParameterError(f"'{path}' is not supported{more}.", param=path)


def warnings_header(warnings: Iterable[str]) -> str:
    """Warnings as the value of a header: printable ASCII, not too long."""
    text = " ".join(warnings)[:_LONGEST_HEADER]
    return "".join(char if " " <= char <= "~" else "?" for char in text)

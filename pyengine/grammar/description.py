"""The value that describes a grammar."""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

import msgspec

from pyengine.errors import InvalidRequestError

_encode = msgspec.json.Encoder().encode


class Grammar:
    """A description of texts: immutable, hashable, equal by its bytes. Any thread may use it.

    Made by the functions of :mod:`pyengine.grammar`, never directly. The JSON of a description is
    ``{"kind": ..., ...}``; a whole answer is a text of the grammar, then an end token.

    Attributes:
        kind: Which rule this is, such as ``json_schema`` or ``sequence``.
        fields: What the rule says besides: values of JSON, grammars, or tuples of grammars.
        tag: What the maker calls this part, for whoever walks the description; the compiler and
            equality know nothing of it.
    """

    __slots__ = ("_bytes", "fields", "kind", "tag")

    _bytes: bytes

    kind: str
    fields: Mapping[str, Any]
    tag: Any

    def __init__(self, kind: str, fields: Mapping[str, Any], tag: Any = None) -> None:
        """Describe.

        Raises:
            InvalidRequestError: A value is not JSON.
        """
        object.__setattr__(self, "kind", kind)
        object.__setattr__(self, "fields", MappingProxyType(dict(fields)))
        object.__setattr__(self, "tag", tag)
        spelled = {name: _spelled(value) for name, value in fields.items()}
        try:
            made = _encode({"kind": kind, **spelled})
        except (TypeError, ValueError, RecursionError) as error:
            raise InvalidRequestError(
                f"this grammar of kind '{kind}' cannot be written as JSON: {error}"
            ) from None
        object.__setattr__(self, "_bytes", made)

    def description(self) -> bytes:
        """The JSON that is compiled, UTF-8."""
        return self._bytes

    def tagged(self, tag: Any) -> Self:
        """The same grammar with another :attr:`tag`."""
        return type(self)(self.kind, self.fields, tag)

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError("a Grammar is immutable")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Grammar) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __repr__(self) -> str:
        shown = self._bytes.decode()
        return f"Grammar({shown if len(shown) <= 200 else shown[:200] + '…'})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.kind, dict(self.fields), self.tag)


def _spelled(value: Any) -> Any:
    """A field as the encoder takes it; a grammar within is not encoded again."""
    if isinstance(value, Grammar):
        return msgspec.Raw(value.description())
    if isinstance(value, tuple):
        return [_spelled(each) for each in value]
    return value

"""The value that describes a grammar."""

from collections.abc import Iterable, Iterator, Mapping
from types import MappingProxyType
from typing import Any, Self

import msgspec

from pyengine.errors import InvalidGrammarError, InvalidRequestError

_encode = msgspec.json.Encoder().encode

MOST_BYTES = 1 << 20
"""The longest description; what is longer is refused while it is made."""


class Grammar:
    """A description of texts: immutable, hashable, equal by its bytes. Any thread may use it.

    Made by the functions of :mod:`pyengine.grammar`, never directly. The JSON of a description is
    ``{"kind": ..., ...}``; a whole answer is a text of the grammar, then an end token.

    Attributes:
        kind: Which rule this is, such as ``json_schema`` or ``sequence``.
        fields: The further fields of the rule: values of JSON, grammars, or tuples of grammars.
        tag: A name for this part, for code that walks the description; the compiler and
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
            InvalidRequestError: A value is not JSON, or the description is longer than
                :data:`MOST_BYTES`.
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
        if len(made) > MOST_BYTES:
            raise _too_long()
        object.__setattr__(self, "_bytes", made)

    def description(self) -> bytes:
        """The JSON that is compiled, UTF-8."""
        return self._bytes

    def tagged(self, tag: Any) -> Self:
        """Returns the grammar with another :attr:`tag`, without encoding it again."""
        made = object.__new__(type(self))
        for name in ("kind", "fields", "_bytes"):
            object.__setattr__(made, name, getattr(self, name))
        object.__setattr__(made, "tag", tag)
        return made

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


def bounded(parts: Iterable[Grammar]) -> Iterator[Grammar]:
    """The parts of one grammar as they are made, while they are not too long together.

    Raises:
        InvalidRequestError: They are: what is to come is not even made.
    """
    size = 0
    for part in parts:
        size += len(part.description())
        if size > MOST_BYTES:
            raise _too_long()
        yield part


def _too_long() -> InvalidGrammarError:
    message = f"the grammar's description is longer than {MOST_BYTES} bytes"
    return InvalidGrammarError(message, param="grammar")


def _spelled(value: Any) -> Any:
    """A field as the encoder takes it; a grammar within is not encoded again."""
    if isinstance(value, Grammar):
        return msgspec.Raw(value.description())
    if isinstance(value, tuple):
        return [_spelled(each) for each in value]
    return value

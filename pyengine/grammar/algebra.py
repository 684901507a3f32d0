"""The functions that make grammars: what a text is, and how texts are put together."""

import re
from collections.abc import Iterable, Mapping
from typing import Any, Literal

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.grammar.description import Grammar
from pyengine.grammar.typed import schema_of_type

Whitespace = Literal["single_line", "compact", "flexible"]
"""Between the tokens of JSON: as Python's ``json.dumps`` writes, none, or a bounded amount."""

Unenforceable = Literal["refuse", "ignore"]
"""How a keyword that no grammar can enforce is treated: an error that names it, or a warning."""

MOST_IN_ANY_ORDER = 64
"""How many parts, or properties of an object, may come in any order."""

KeyOrder = Literal["schema", "any"]
"""Of an object's keys: as the schema names them and then others, or any. In any order an object may
have 64 properties, and costs a state of the grammar for each set of keys that an answer has come
to, in place of one for each key."""


def json_schema(
    schema: Mapping[str, Any] | bool | str | type | Any,
    *,
    whitespace: Whitespace = "single_line",
    unenforceable: Unenforceable = "refuse",
    key_order: KeyOrder = "schema",
    name: str | None = None,
) -> Grammar:
    """JSON that satisfies a schema.

    Args:
        schema: A JSON Schema as a dict, a bool or JSON text; or a pydantic model, dataclass,
            msgspec Struct or TypedDict, whose objects then have no further properties.
        whitespace: See :data:`Whitespace`.
        unenforceable: See :data:`Unenforceable`.
        key_order: See :data:`KeyOrder`.
        name: Stands before what a refusal or a warning says about it; for one of several schemas.

    Raises:
        InvalidRequestError: ``schema`` is none of these.
    """
    if isinstance(schema, str):
        try:
            schema = msgspec.json.decode(schema)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            raise InvalidRequestError(f"the JSON Schema is not valid JSON: {error}") from None
        if not isinstance(schema, dict | bool):
            raise InvalidRequestError("a JSON Schema must be an object or a boolean")
    if isinstance(schema, Mapping):
        schema = dict(schema)
    elif not isinstance(schema, bool):
        schema = schema_of_type(schema)
    fields = {
        "schema": schema,
        "whitespace": _one_of("whitespace", whitespace, Whitespace),
        "unenforceable": _one_of("unenforceable", unenforceable, Unenforceable),
    }
    if _one_of("key_order", key_order, KeyOrder) != "schema":
        fields["key_order"] = key_order
    if name is not None:
        fields["name"] = _string("name", name)
    return Grammar("json_schema", fields)


def json_object(*, whitespace: Whitespace = "single_line") -> Grammar:
    """Any JSON object."""
    return Grammar("json_object", {"whitespace": _one_of("whitespace", whitespace, Whitespace)})


def json_value(*, whitespace: Whitespace = "single_line") -> Grammar:
    """Any JSON."""
    return Grammar("json_value", {"whitespace": _one_of("whitespace", whitespace, Whitespace)})


def regex(pattern: str) -> Grammar:
    """Text that a regular expression matches as a whole."""
    return Grammar("regex", {"pattern": _string("regex", pattern)})


def choice(choices: Iterable[str]) -> Grammar:
    """One of some strings.

    Raises:
        InvalidRequestError: There is none, or one is not a string.
    """
    if isinstance(choices, str):
        raise InvalidRequestError("a choice is made of a list of strings, not of one string")
    made = [_string("choice", each) for each in choices]
    if not made:
        raise InvalidRequestError("a choice needs at least one string")
    return Grammar("choice", {"choices": made})


def lark(source: str) -> Grammar:
    """A grammar in llguidance's dialect of Lark; it begins at ``start``."""
    return Grammar("lark", {"source": _string("lark", source)})


def ebnf(source: str) -> Grammar:
    """A grammar in GBNF, as llama.cpp and xgrammar write it; it begins at ``root``."""
    return Grammar("ebnf", {"source": _string("ebnf", source)})


def text(exactly: str) -> Grammar:
    """Exactly this; special tokens that are spelled in it are those tokens."""
    return Grammar("text", {"text": _string("text", exactly)})


def free_text(until: Iterable[str] = ()) -> Grammar:
    """Any text, also none, in which none of ``until`` occurs; one of them normally follows.

    Raises:
        InvalidRequestError: One of ``until`` is empty or not a string.
    """
    if isinstance(until, str):
        raise InvalidRequestError("'until' is a list of strings, not one string")
    made = [_string("until", each) for each in until]
    if not all(made):
        raise InvalidRequestError("free text cannot end at an empty string")
    return Grammar("free_text", {"until": made})


def sequence(*parts: Grammar) -> Grammar:
    """One part after the other."""
    if len(parts) == 1:
        return parts[0]
    return Grammar("sequence", {"parts": _grammars(parts)})


def any_of(*options: Grammar) -> Grammar:
    """One of the options.

    Raises:
        InvalidRequestError: There is none.
    """
    if not options:
        raise InvalidRequestError("any_of needs at least one option")
    if len(options) == 1:
        return options[0]
    return Grammar("any_of", {"options": _grammars(options)})


def optional(part: Grammar) -> Grammar:
    """The part, or nothing."""
    return Grammar("optional", {"part": _grammar(part)})


def repeat(
    part: Grammar,
    *,
    min: int = 0,  # noqa: A002 (as the description spells it)
    max: int | None = None,  # noqa: A002
    separator: Grammar | None = None,
) -> Grammar:
    """The part ``min`` to ``max`` times (None: as often as you like), separated.

    Raises:
        InvalidRequestError: The bounds are no bounds.
    """
    if min < 0 or (max is not None and max < min):
        raise InvalidRequestError(f"a repetition cannot have bounds {min} and {max}")
    between = None if separator is None else _grammar(separator)
    return Grammar("repeat", {"part": _grammar(part), "min": min, "max": max, "separator": between})


def any_order(
    required: Iterable[Grammar],
    optional: Iterable[Grammar] = (),
    *,
    separator: Grammar | None = None,
) -> Grammar:
    """Parts in any order, each once, those of ``optional`` or not at all; separated.

    An answer costs a state of the grammar for each set of parts that it has come to.

    Raises:
        InvalidRequestError: There are more than :data:`MOST_IN_ANY_ORDER` parts.
    """
    made, others = _grammars(required), _grammars(optional)
    if (count := len(made) + len(others)) > MOST_IN_ANY_ORDER:
        raise InvalidRequestError(
            f"in any order at most {MOST_IN_ANY_ORDER} parts may come, not {count}"
        )
    between = None if separator is None else _grammar(separator)
    return Grammar("any_order", {"required": made, "optional": others, "separator": between})


def any_but(markers: Iterable[str]) -> str:
    """A regular expression for the first character or two of a text that begins with no marker.

    Whitespace is no beginning either. Where a marker has more than one character, a text may begin
    with the marker's first if neither its second nor its first comes next: so no marker can
    straddle the beginning and what follows it.
    """
    firsts: dict[str, set[str]] = {}
    for marker in markers:
        firsts.setdefault(marker[0], set()).add(marker[1:2])
    inside = "".join(sorted(re.escape(first) for first in firsts))
    made = [rf"[^{inside}\s]"]
    for first, seconds in sorted(firsts.items()):
        if "" not in seconds:
            refused = "".join(sorted(re.escape(each) for each in {first, *seconds}))
            made.append(rf"{re.escape(first)}[^{refused}]")
    return "|".join(made)


def _string(name: str, value: Any) -> str:
    if not isinstance(value, str):
        raise InvalidRequestError(f"'{name}' must be a string, not {type(value).__name__}")
    return value


def _one_of(name: str, value: Any, literal: Any) -> Any:
    allowed = literal.__args__
    if value not in allowed:
        raise InvalidRequestError(f"'{name}' must be one of {', '.join(allowed)}, not {value!r}")
    return value


def _grammar(value: Any) -> Grammar:
    if not isinstance(value, Grammar):
        raise InvalidRequestError(f"a part of a grammar must be a Grammar, not {value!r}")
    return value


def _grammars(values: Iterable[Any]) -> tuple[Grammar, ...]:
    return tuple(_grammar(value) for value in values)

"""Sampling parameters as they are typed in a chat: ``temperature=0.5 max_tokens=100``."""

import shlex
import types
from difflib import get_close_matches
from typing import Any, get_args, get_origin

import msgspec

from pyengine.errors import InvalidRequestError
from pyengine.sampling import SamplingParams

# A conversation shows the text alone.
_WITHOUT = frozenset({"logprobs"})


def settings(params: SamplingParams) -> dict[str, Any]:
    """The parameters that can be changed and their values, by name."""
    values = msgspec.structs.asdict(params)
    return {name: value for name, value in values.items() if name not in _WITHOUT}


def changed(params: SamplingParams, text: str) -> SamplingParams:
    """``params`` with the settings in ``text``: ``NAME=VALUE``, more after spaces or semicolons.

    A list is written with commas, or as JSON in quotes, as a mapping is. ``none`` unsets a number
    that may be left out; an empty list is nothing, ``stop=``.

    Raises:
        InvalidRequestError: A name is unknown or a value invalid; nothing is changed.
    """
    fields = msgspec.structs.fields(SamplingParams)
    hints = {field.name: field.type for field in fields if field.name not in _WITHOUT}
    values: dict[str, Any] = {}
    for word in _words(text):
        name, equals, value = word.partition("=")
        if name not in hints:
            near = get_close_matches(name, hints, 1)
            meant = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(hints)}"
            raise InvalidRequestError(f"unknown parameter {name!r}; {meant}")
        if not equals:
            raise InvalidRequestError(f"write {name}=VALUE", param=name)
        values[name] = _read(name, value, hints[name])
    fresh = msgspec.structs.replace(params, **values)
    fresh.validate()
    return fresh


def _words(text: str) -> list[str]:
    lexer = shlex.shlex(text, posix=True)
    lexer.whitespace += ";"
    lexer.whitespace_split = True
    lexer.commenters = ""
    try:
        return list(lexer)
    except ValueError as error:
        raise InvalidRequestError(f"cannot read {text!r}: {error}".lower()) from error


def _read(name: str, text: str, hint: Any) -> Any:
    """``text`` as a value of type ``hint``."""
    value: Any = text
    if isinstance(hint, types.UnionType) and type(None) in get_args(hint):
        value = None if text.lower() == "none" else text
    elif get_origin(hint) is tuple:
        value = [part for part in text.split(",") if part]
    try:
        if text.startswith(("[", "{")):
            return msgspec.json.decode(text, type=hint)
        return msgspec.convert(value, hint, strict=False)
    except msgspec.MsgspecError as error:
        raise InvalidRequestError(f"{name}={text}: {error}", param=name) from error

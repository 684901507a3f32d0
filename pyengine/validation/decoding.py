"""Errors of msgspec about a value from outside, in the terms of OpenAI's errors."""

import re
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError, UnsupportedParameterError
from pyengine.validation.allowed_values import choices

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?:key` in `)?\$\.?(?P<at>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)
_INDEX = re.compile(r"\[\d+\]")
# msgspec's messages for a string that is not among a literal's, or no tag of a union.
_NONE_OF = ("Invalid enum value", "Invalid value")
_LONGEST_NAME = 100


def refusal(error: msgspec.ValidationError, kind: Any, inside: str = "") -> InvalidRequestError:
    """The error that names the field at fault.

    Args:
        error: The error that decoding or converting a value raised.
        kind: The type that the value should have had.
        inside: The path of that value in the request, such as ``messages[1]``.
    """
    found = _WHERE.match(str(error))
    assert found is not None  # the pattern matches any text
    what, at = found["what"], _join(inside, found["at"] or "")
    if unknown := _UNKNOWN.match(what):
        name = _join(at, _short(unknown["field"]))
        return UnsupportedParameterError(f"Unknown parameter: '{name}'.", param=name)
    if missing := _MISSING.match(what):
        name = _join(at, missing["field"])
        return InvalidRequestError(
            f"Missing required parameter: '{name}'.",
            param=name,
            code="missing_required_parameter",
        )
    if not at:
        return InvalidRequestError(f"The body is malformed: {what}.")
    reason = _short(what)
    if what.startswith(_NONE_OF) and (there := choices(kind, _INDEX.sub("[...]", found["at"]))):
        reason += f"; there are: {', '.join(there)}"
    return InvalidRequestError(
        f"Invalid value for '{at}': {reason}.", param=at, code="invalid_type"
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path and name and name[0] != "[" else path + name


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"

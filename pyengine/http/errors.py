"""Errors as OpenAI's clients know them, and what msgspec says about a body in their terms."""

import re

import msgspec

from pyengine.errors import InvalidRequestError, PyengineError, UnsupportedParameterError

_WHERE = re.compile(r"^(?P<what>.*?)(?: - at `(?P<path>key in )?\$\.?(?P<at>.*)`)?$", re.DOTALL)
_UNKNOWN = re.compile(r"^Object contains unknown field `(?P<field>.*)`$", re.DOTALL)
_MISSING = re.compile(r"^Object missing required field `(?P<field>.*)`$", re.DOTALL)
_LONGEST_NAME = 100


class NoSuchPathError(PyengineError):
    """Nothing lives at this path."""

    status = 404
    type = "invalid_request_error"
    code = "unknown_url"


class MethodNotAllowedError(PyengineError):
    """The path exists, for other methods.

    Attributes:
        allow: The methods it has.
    """

    status = 405
    type = "invalid_request_error"
    code = "method_not_allowed"

    def __init__(self, message: str, *, allow: str) -> None:
        super().__init__(message)
        self.allow = allow


class BodyTimeoutError(PyengineError):
    """The client took too long to send the body."""

    status = 408
    type = "invalid_request_error"
    code = "request_timeout"


class UnsupportedMediaError(PyengineError):
    """The body is compressed."""

    status = 415
    type = "invalid_request_error"
    code = "unsupported_media_type"


class ShuttingDownError(PyengineError):
    """The server is shutting down; another one may take the request."""

    status = 503
    code = "shutting_down"
    retry_after = 1


class InternalError(PyengineError):
    """A bug. What happened is in the log, not in the answer."""

    code = "internal_error"


def internal_error() -> InternalError:
    """The error that says nothing about what happened."""
    return InternalError("Internal error; the server's log knows more.")


def error_object(error: PyengineError) -> dict[str, dict[str, str | None]]:
    """``{"error": {message, type, param, code}}``."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_body(error: PyengineError) -> bytes:
    """The JSON of :func:`error_object`."""
    return msgspec.json.encode(error_object(error))


def decode_error(error: Exception) -> InvalidRequestError:
    """What was wrong with a body, in OpenAI's terms, from what decoding it raised.

    Takes msgspec's errors, UnicodeDecodeError and RecursionError.
    """
    if isinstance(error, RecursionError):
        return InvalidRequestError("The body is nested too deeply.", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequestError("The body is not valid UTF-8.", code="invalid_json")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json")
    found = _WHERE.match(str(error))
    assert found is not None  # the pattern matches any text
    what, at = found["what"], found["at"] or ""
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
        return InvalidRequestError(f"The body is not what is wanted: {what}.")
    return InvalidRequestError(
        f"Invalid value for '{at}': {_short(what)}.", param=at, code="invalid_type"
    )


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST_NAME else text[:_LONGEST_NAME] + "…"

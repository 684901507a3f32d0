"""Errors in OpenAI's format, of requests that are malformed too."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from pyengine.errors import InvalidRequestError, PyengineError
from pyengine.validation.decoding import refusal

_NAME_ENDS = re.compile(r"[.\[]")


@dataclass(frozen=True)
class FieldNames:
    """How a request spells the engine's parameters.

    Attributes:
        fields: The request's field by the engine's parameter, where the two differ.
        schemas: The request's field of a JSON Schema by what refusals of that schema begin with;
            they concern the parameter ``grammar``.
    """

    fields: Mapping[str, str] = field(default_factory=dict)
    schemas: Mapping[str, str] = field(default_factory=dict)

    def rename(self, error: PyengineError) -> None:
        """Put the request's field in place of the engine's parameter in ``error``."""
        if error.param is None:
            return
        name = _NAME_ENDS.split(error.param, maxsplit=1)[0]
        of_schema = (at for begin, at in self.schemas.items() if error.message.startswith(begin))
        named = self.fields.get(name)
        if name == "grammar":
            named = next(of_schema, named)
        if named is None:
            return
        rest = error.param[len(name) :]
        # The engine's numbering of elements is not the request's.
        error.param = named + ("" if rest.startswith("[") else rest)
        error.message = error.message.replace(f"'{name}'", f"'{named}'")


class NoSuchPathError(PyengineError):
    """There is no such path."""

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
    """The error for the client, which says nothing about what happened."""
    return InternalError("Internal error; see the server's log.")


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


def decode_error(error: Exception, kind: Any) -> InvalidRequestError:
    """The error for a body, from what decoding it as ``kind`` raised.

    Takes msgspec's errors, UnicodeDecodeError and RecursionError.
    """
    if isinstance(error, RecursionError):
        return InvalidRequestError("The body is nested too deeply.", code="invalid_json")
    if isinstance(error, UnicodeDecodeError):
        return InvalidRequestError("The body is not valid UTF-8.", code="invalid_json")
    if not isinstance(error, msgspec.ValidationError):
        return InvalidRequestError(f"The body is not valid JSON: {error}.", code="invalid_json")
    return refusal(error, kind)

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
        quoted = re.compile(rf"'{re.escape(name)}(\[[^']*)?'")
        error.message = quoted.sub(lambda _: f"'{named}'", error.message)


class HttpError(PyengineError):
    """An error that only HTTP knows.

    Attributes:
        headers: Headers of its answer, beside that of ``retry_after``.
    """

    status = 400
    type = "invalid_request_error"
    headers: tuple[tuple[str, str], ...] = ()

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: tuple[tuple[str, str], ...] | None = None,
        retry_after: int | None = None,
    ) -> None:
        """``headers`` and ``retry_after`` of None are those of the class."""
        super().__init__(message, param=param, code=code)
        if headers is not None:
            self.headers = headers
        if retry_after is not None:
            self.retry_after = retry_after


class AuthenticationError(HttpError):
    """The request has no key, or a wrong one."""

    status = 401
    code = "invalid_api_key"
    headers = (("www-authenticate", "Bearer"),)


class ForbiddenError(HttpError):
    """The request comes from where it must not come from, or its key does not let in here."""

    status = 403
    code = "forbidden"


class RateLimitError(HttpError):
    """The request's key has used what it may."""

    status = 429
    type = "rate_limit_error"
    code = "rate_limit_exceeded"


class NoSuchPathError(HttpError):
    """There is no such path."""

    status = 404
    code = "unknown_url"


class NoSuchRequestError(HttpError):
    """No such request is being answered."""

    status = 404
    code = "request_not_found"


class MethodNotAllowedError(HttpError):
    """The path exists, for other methods; the header ``allow`` names them."""

    status = 405
    code = "method_not_allowed"


class BodyTimeoutError(HttpError):
    """The client took too long to send the body."""

    status = 408
    code = "request_timeout"


class TargetTooLongError(HttpError):
    """The path is too long, with its query."""

    status = 414
    code = "uri_too_long"


class HeadersTooLargeError(HttpError):
    """The headers are too long."""

    status = 431
    code = "headers_too_large"


class UnsupportedMediaError(HttpError):
    """The body is compressed, or not said to be JSON."""

    status = 415
    code = "unsupported_media_type"


class NoSuchObjectError(HttpError):
    """The key that asks has stored no such object, or it has expired."""

    status = 404
    code = "not_found"


class StoreFullError(HttpError):
    """The store has no room for the object."""

    status = 413
    code = "store_full"


class StoreUnavailableError(HttpError):
    """The store cannot be read or written now: its disk is full, or another process locks it."""

    status = 503
    type = "server_error"
    code = "store_unavailable"
    retry_after = 5


class StoreOffError(HttpError):
    """The server stores nothing."""

    status = 404
    code = "store_off"


class ShuttingDownError(HttpError):
    """The server is shutting down; another one may take the request."""

    status = 503
    type = "server_error"
    code = "shutting_down"
    retry_after = 1
    headers = (("connection", "close"),)

    def __init__(self) -> None:
        super().__init__("The server is shutting down.")


class InternalError(HttpError):
    """A bug. What happened is in the log, not in the answer."""

    status = 500
    type = "server_error"
    code = "internal_error"

    def __init__(self) -> None:
        super().__init__("Internal error; see the server's log.")


def error_headers(error: PyengineError) -> list[tuple[str, str]]:
    """The headers of an error's answer, beside those that every answer has."""
    headers = list(error.headers) if isinstance(error, HttpError) else []
    if error.retry_after is not None:
        headers.append(("retry-after", str(error.retry_after)))
    return headers


def error_body(error: PyengineError) -> bytes:
    """``{"error": {message, type, param, code}}`` in JSON."""
    told = {name: getattr(error, name) for name in ("message", "type", "param", "code")}
    return msgspec.json.encode({"error": told})


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

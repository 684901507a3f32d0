"""One path and method: its handler, and the types of its request, answer and errors."""

import inspect
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

Handler = Callable[[Any], Awaitable[None]]
"""Answers an :class:`pyengine.http.exchange.Exchange`."""

JSON = "application/json"
EVENTS = "text/event-stream"
LINES = "application/x-ndjson"
"""Media types of answers."""


class ErrorObject(msgspec.Struct):
    """An error: message, field at fault, and OpenAI's type and code."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(msgspec.Struct):
    """The body of every error."""

    error: ErrorObject


class Status(msgspec.Struct):
    """The process lives, or takes requests."""

    status: str


class Version(msgspec.Struct):
    """The version of pyengine."""

    version: str


@dataclass(frozen=True)
class Operation:
    """A path and method.

    Attributes:
        handler: Answers; its docstring's first paragraph describes it to clients.
        answer: The type of its answer, or a media type that is not JSON.
        request: The type of its body.
        query: The type of its query, as :func:`pyengine.http.query.read_query` reads it.
        stream: The media type of an answer that comes in parts, if it may.
        error: The type of the body of its own errors.
        media: The media type of its body.
        example: A body that is answered.
    """

    handler: Handler
    answer: Any
    request: Any = None
    query: Any = None
    stream: str | None = None
    error: Any = ErrorBody
    media: str = JSON
    example: Any = None

    @property
    def summary(self) -> str:
        """What it does."""
        told = inspect.getdoc(self.handler) or ""
        return " ".join(told.partition("\n\n")[0].split())


Paths = Mapping[str, Mapping[str, Operation]]
"""Operations by path and method."""

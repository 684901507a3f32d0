"""The description of one path: the types of its request, answer and errors."""

from dataclasses import dataclass
from typing import Any

import msgspec

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
    """The request and the answers of a path.

    Attributes:
        summary: In a line.
        answer: The type of its answer, or a media type that is not JSON.
        request: The type of its body.
        parameters: OpenAPI's objects of its parameters.
        stream: The media type of an answer that comes in parts, if it may.
        error: The type of the body of its own errors.
        media: The media type of its body.
        example: A body that is answered.
    """

    summary: str
    answer: Any
    request: Any = None
    parameters: tuple[dict[str, Any], ...] = ()
    stream: str | None = None
    error: Any = ErrorBody
    media: str = JSON
    example: Any = None


def query(name: str, text: str, schema: dict[str, Any]) -> dict[str, Any]:
    """A parameter of a query."""
    return {"name": name, "in": "query", "description": text, "schema": schema}


def object_id(name: str) -> dict[str, Any]:
    """A parameter of a path that is an object's id."""
    schema = {"type": "string", "minLength": 1, "pattern": "^[A-Za-z0-9_-]+$"}
    return {
        "name": name,
        "in": "path",
        "required": True,
        "description": "Its id.",
        "schema": schema,
    }

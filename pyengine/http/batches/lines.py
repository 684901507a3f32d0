"""The lines of batch files, as OpenAI has them: a request each, an answer each."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from pyengine.http.errors import decode_error

MAX_LINES = 50_000
"""Most requests of one batch."""

ENDPOINTS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/classify",
    "/v1/messages",
    "/v1/rerank",
    "/v1/score",
    "/v1/decisions",
)
"""The paths that a line may name, as far as the server has them."""


class RequestLine(msgspec.Struct, forbid_unknown_fields=True):
    """A line of the input."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: Literal["POST"] = "POST"


class LineAnswer(msgspec.Struct):
    """The endpoint's answer to a line."""

    status_code: int
    request_id: str
    body: msgspec.Raw


class LineError(msgspec.Struct):
    """Why there is no answer."""

    code: str
    message: str


class AnswerLine(msgspec.Struct):
    """A line of the output, or of the errors."""

    id: str
    custom_id: str
    response: LineAnswer | None
    error: LineError | None

    @property
    def good(self) -> bool:
        """Whether the line belongs to the output."""
        return self.response is not None and self.response.status_code == 200


@dataclass(frozen=True)
class Malformed:
    """A line that is no request: what is wrong, in which line, counted from 1."""

    line: int
    code: str
    message: str
    param: str | None = None


_decode = msgspec.json.Decoder(RequestLine)


def read_lines(
    data: Iterable[bytes], served: Iterable[str], endpoint: str | None = None
) -> Iterator[RequestLine | Malformed]:
    """The requests of an input, one for each line that is not empty.

    Args:
        data: Its lines.
        served: The paths that the server has.
        endpoint: The only path that lines may name; None is any of :data:`ENDPOINTS`.
    """
    allowed = {path for path in ENDPOINTS if path in set(served)}
    if endpoint is not None:
        allowed &= {endpoint}
    seen: set[str] = set()
    for number, line in enumerate(data, 1):
        if not line.strip():
            continue
        try:
            request = _decode.decode(line)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            refused = decode_error(error, RequestLine)
            code = refused.code or "invalid_request"
            yield Malformed(number, code, refused.message, refused.param)
            continue
        if (wrong := _wrong(request, allowed, seen)) is not None:
            yield Malformed(number, *wrong)
            continue
        seen.add(request.custom_id)
        yield request


def _wrong(request: RequestLine, allowed: set[str], seen: set[str]) -> tuple[str, str, str] | None:
    """An error of a request: code, message, field."""
    if request.url not in allowed:
        there = ", ".join(sorted(allowed)) or "none"
        text = f"'url' must be one of {there}, not '{request.url[:100]}'."
        return "invalid_url", text, "url"
    if request.custom_id in seen:
        text = f"'custom_id' must be unique; '{request.custom_id[:100]}' comes twice."
        return "duplicate_custom_id", text, "custom_id"
    for name in ("stream", "background"):
        if request.body.get(name):
            return "invalid_body", f"'body.{name}' is not for batches.", f"body.{name}"
    return None

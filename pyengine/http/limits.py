"""Bounds of requests, and the reading of bodies within them."""

import asyncio
from dataclasses import dataclass, replace

from pyengine.errors import InvalidRequestError, PayloadTooLargeError
from pyengine.http.errors import (
    BodyTimeoutError,
    HeadersTooLargeError,
    TargetTooLongError,
    UnsupportedMediaError,
)
from pyengine.http.rsgi import Headers, HTTPProtocol, ProtocolError, Scope
from pyengine.settings.server import ServerConfig, UnknownFields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Each limit has a clear error behind it.

    Attributes:
        header_seconds: Longest time a client may take to send the head of a request, from the
            connection, or from the answer before, on; then its connection is closed.
        head_bytes: Longest path with its query, and longest headers; more is answered by 414 and
            431.
        body_bytes: Longest request body; more is answered by 413.
        body_seconds: Longest time a client may take to send it; more is answered by 408.
        file_bytes: Longest body with a file; more is answered by 413.
        file_seconds: Longest time a client may take to send it; more is answered by 408.
        discard_bytes: How much of a body that is too long is read and thrown away, so that the
            client gets to read its answer instead of a reset connection.
        prompts: Most prompts in one completions request.
        choices: Most answers of one request: prompts times ``n``.
        tools: Most tools of one request.
        messages: Most messages of one conversation.
        connections: Connections that one HTTP process serves at once, fewer where the limit of
            open files is lower. More are turned away by 503, except health checks.
        backlog: Connections that wait to be accepted.
        keep_alive_seconds: How long a stream may be silent before a comment is written to it.
        page: Whether ``/`` serves the page.
        drain_seconds: How long running requests get to finish at shutdown.
        unknown_fields: What becomes of a request's fields that are not known.
        request_templates: Whether requests may bring chat templates.
    """

    header_seconds: float = 30.0
    head_bytes: int = 32 << 10
    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    file_bytes: int = 64 << 20
    file_seconds: float = 600.0
    discard_bytes: int = 64 << 20
    prompts: int = 128
    choices: int = 128
    tools: int = 128
    messages: int = 10_000
    connections: int = 8192
    backlog: int = 2048
    keep_alive_seconds: float = 5.0
    page: bool = True
    drain_seconds: float = 30.0
    unknown_fields: UnknownFields = "refuse"
    request_templates: bool = False

    @classmethod
    def of(cls, config: ServerConfig) -> "Limits":
        """The limits that a configuration gives."""
        return cls(
            body_bytes=config.body_bytes,
            file_bytes=config.file_bytes,
            prompts=config.max_prompts,
            choices=config.max_choices,
            tools=config.max_tools,
            messages=config.max_messages,
            connections=config.max_connections,
            drain_seconds=config.drain_seconds,
            page=config.page,
            unknown_fields=config.unknown_fields,
            request_templates=config.trust_request_chat_template,
        )

    @property
    def of_files(self) -> "Limits":
        """The limits of a body that has a file."""
        return replace(self, body_bytes=self.file_bytes, body_seconds=self.file_seconds)


def check_head(scope: Scope, limits: Limits) -> None:
    """Refuse a request whose head is longer than the limit.

    Raises:
        TargetTooLongError: Its path is, with the query.
        HeadersTooLargeError: Its headers are, names and values together.
    """
    if len(scope.path) + len(scope.query_string) > limits.head_bytes:
        raise TargetTooLongError(
            f"The path, with its query, is longer than the limit of {limits.head_bytes} bytes."
        )
    if sum(len(name) + len(value) for name, value in scope.headers.items()) > limits.head_bytes:
        raise HeadersTooLargeError(
            f"The headers are longer than the limit of {limits.head_bytes} bytes."
        )


async def read_body(proto: HTTPProtocol, headers: Headers, limits: Limits) -> bytes:
    """The whole body of a request.

    Raises:
        PayloadTooLargeError: It is longer than the limit; no more than a chunk of it was in memory.
        BodyTimeoutError: It did not come in time.
        UnsupportedMediaError: It is compressed.
        InvalidRequestError: Its chunks are malformed.
        RSGIProtocolClosed: The client left meanwhile.
    """
    if (coding := headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMediaError(f"A body in content-encoding '{coding}' is not supported.")
    announced = headers.get("content-length")
    length = int(announced) if announced is not None and announced.isdecimal() else None
    too_large = length is not None and length > limits.body_bytes
    if too_large and headers.get("expect") is not None:
        raise _too_large(limits)  # the client waits for "100 Continue" and has sent nothing
    try:
        async with asyncio.timeout(limits.body_seconds):
            if length is not None and not too_large:
                return bytes(await proto())
            return await _read_chunks(proto, limits)
    except ProtocolError:
        raise InvalidRequestError("The body's transfer encoding is malformed.") from None
    except TimeoutError:
        if too_large:
            raise _too_large(limits) from None
        raise BodyTimeoutError(
            f"The body did not come within {limits.body_seconds:g} seconds."
        ) from None


async def _read_chunks(proto: HTTPProtocol, limits: Limits) -> bytes:
    """The body chunk by chunk; of one that is too long nothing is kept."""
    body = bytearray()
    size = 0
    async for chunk in proto:
        size += len(chunk)
        if size <= limits.body_bytes:
            body += chunk
            continue
        body.clear()
        if size > limits.discard_bytes:
            break
    if size > limits.body_bytes:
        raise _too_large(limits)
    return bytes(body)


def _too_large(limits: Limits) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is longer than the limit of {limits.body_bytes} bytes.")


def check_messages(count: int, limits: Limits) -> None:
    """Refuse a conversation with more messages than the limit.

    Raises:
        InvalidRequestError: Naming ``messages``.
    """
    if count > limits.messages:
        raise InvalidRequestError(
            f"'messages' may hold {limits.messages} messages, not {count}.", param="messages"
        )


def check_prompts(count: int, n: int, limits: Limits) -> None:
    """Refuse a request with more prompts, or ``n`` answers to each, than the limits; or none.

    Raises:
        InvalidRequestError: Naming ``prompt`` or ``n``.
    """
    if not 1 <= count <= limits.prompts:
        raise InvalidRequestError(
            f"'prompt' must hold 1 to {limits.prompts} prompts, not {count}.", param="prompt"
        )
    if count * n > limits.choices:
        raise InvalidRequestError(
            f"{count} prompts times 'n' of {n} are more than {limits.choices} choices.", param="n"
        )

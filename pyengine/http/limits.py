"""Bounds of requests; ``bodies.py`` reads bodies within them."""

from dataclasses import dataclass, replace

from pyengine.errors import InvalidRequestError
from pyengine.http.errors import HeadersTooLargeError, TargetTooLongError
from pyengine.http.rsgi import Scope
from pyengine.settings.server import ServerConfig, UnknownFields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Each limit has a clear error behind it.

    Attributes:
        idle_seconds: Longest time a client may take to send the head of a request, from the
            connection, or from the answer before, on; then its connection is closed.
        unread_seconds: Longest time a client may read nothing of what is sent to it; then its
            connection is closed. Not of unix sockets.
        head_bytes: Longest path with its query, and longest headers; more is answered by 414 and
            431.
        body_bytes: Longest request body; more is answered by 413.
        body_seconds: Longest time a client may take to send it; more is answered by 408.
        file_bytes: Longest body with a file; more is answered by 413.
        file_seconds: Longest time a client may take to send it; more is answered by 408.
        bodies_bytes: Room for all bodies of one HTTP process that are being read; a large one that
            finds none is answered by 503.
        discard_bytes: How much of a body that is too long, or whose request is refused before, is
            read and thrown away, so that the client gets to read its answer instead of a reset
            connection.
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

    idle_seconds: float = 75.0
    unread_seconds: float = 60.0
    head_bytes: int = 32 << 10
    body_bytes: int = 4 << 20
    body_seconds: float = 30.0
    file_bytes: int = 64 << 20
    file_seconds: float = 600.0
    bodies_bytes: int = 256 << 20
    discard_bytes: int = 64 << 20
    prompts: int = 128
    choices: int = 128
    tools: int = 1024
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
            idle_seconds=config.idle_seconds,
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


def check_messages(count: int, limits: Limits) -> None:
    """Refuse a conversation with more messages than the limit.

    Raises:
        InvalidRequestError: Naming ``messages``.
    """
    if count > limits.messages:
        raise InvalidRequestError(
            f"'messages' may hold {limits.messages} messages, not {count}.", param="messages"
        )


def check_tools(count: int, limits: Limits) -> None:
    """Refuse a request with more tools than the limit.

    Raises:
        InvalidRequestError: Naming ``tools``, and the option that sets the limit.
    """
    if count > limits.tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.tools} tools, not {count}; the server's --max-tools sets "
            "the limit.",
            param="tools",
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

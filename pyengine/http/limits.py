"""Bounds of requests; ``bodies.py`` reads bodies within them."""

from dataclasses import dataclass, fields, replace

from pyengine.errors import InvalidRequestError
from pyengine.http.errors import HeadersTooLargeError, TargetTooLongError
from pyengine.http.rsgi import Scope
from pyengine.settings.server import ServerConfig, UnknownFields


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Each limit has a clear error behind it. Those of :class:`ServerConfig` are as there.

    Attributes:
        unread_seconds: Longest time a client may read nothing of what is sent to it; then its
            connection is closed. Not of unix sockets.
        head_bytes: Longest path with its query, and longest headers; more is answered by 414 and
            431.
        body_seconds: Longest time a client may take to send a body; more is answered by 408.
        file_seconds: Longest time a client may take to send a body with a file.
        bodies_bytes: Room for all bodies of one HTTP process that are being read; a large one that
            finds none is answered by 503.
        discard_bytes: How much of a body that is too long, or whose request is refused before, is
            read and thrown away, so that the client gets to read its answer instead of a reset
            connection.
        backlog: Connections that wait to be accepted.
        keep_alive_seconds: How long a stream may be silent before a comment is written to it.
    """

    unread_seconds: float = 60.0
    head_bytes: int = 32 << 10
    body_seconds: float = 30.0
    file_seconds: float = 600.0
    bodies_bytes: int = 256 << 20
    discard_bytes: int = 64 << 20
    backlog: int = 2048
    keep_alive_seconds: float = 5.0
    idle_seconds: float = ServerConfig.idle_seconds
    body_bytes: int = ServerConfig.body_bytes
    file_bytes: int = ServerConfig.file_bytes
    max_prompts: int = ServerConfig.max_prompts
    max_choices: int = ServerConfig.max_choices
    max_tools: int = ServerConfig.max_tools
    max_messages: int = ServerConfig.max_messages
    max_connections: int = ServerConfig.max_connections
    page: bool = ServerConfig.page
    drain_seconds: float = ServerConfig.drain_seconds
    unknown_fields: UnknownFields = ServerConfig.unknown_fields
    trust_request_chat_template: bool = ServerConfig.trust_request_chat_template

    @classmethod
    def of(cls, config: ServerConfig) -> "Limits":
        """The limits that a configuration gives."""
        shared = {field.name for field in fields(cls)} & {field.name for field in fields(config)}
        return cls(**{name: getattr(config, name) for name in shared})

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
    if count > limits.max_messages:
        raise InvalidRequestError(
            f"'messages' may hold {limits.max_messages} messages, not {count}.", param="messages"
        )


def check_tools(count: int, limits: Limits) -> None:
    """Refuse a request with more tools than the limit.

    Raises:
        InvalidRequestError: Naming ``tools``, and the option that sets the limit.
    """
    if count > limits.max_tools:
        raise InvalidRequestError(
            f"'tools' may hold {limits.max_tools} tools, not {count}; the server's --max-tools "
            "sets the limit.",
            param="tools",
        )


def check_prompts(count: int, n: int, limits: Limits) -> None:
    """Refuse a request with more prompts, or ``n`` answers to each, than the limits; or none.

    Raises:
        InvalidRequestError: Naming ``prompt`` or ``n``.
    """
    if not 1 <= count <= limits.max_prompts:
        raise InvalidRequestError(
            f"'prompt' must hold 1 to {limits.max_prompts} prompts, not {count}.", param="prompt"
        )
    if count * n > limits.max_choices:
        raise InvalidRequestError(
            f"{count} prompts times 'n' of {n} are more than {limits.max_choices} choices.",
            param="n",
        )

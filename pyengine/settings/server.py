"""The settings of the endpoint: where it listens, who may use it, how much at once.

Imports nothing heavy: the command line makes flags of the fields before anything is loaded.
"""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from pyengine.logs import LogFormat, LogLevel
from pyengine.settings.checks import at_least_one, check_rules, check_types, setting_types
from pyengine.settings.environment import settings_from_environment
from pyengine.validation.rules import Rule

UnknownFields = Literal["refuse", "warn"]
"""What becomes of a request's field that is not known: status 400, or a warning."""


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """The configuration of the endpoint. Immutable.

    Attributes:
        host: Address or name to listen on.
        port: Port to listen on; 0 takes a free one.
        uds: Path of a unix socket to listen on, in the place of host and port.
        tls_cert: File with the certificate and those that it is signed by, in PEM; with it and
            ``tls_key`` the server speaks TLS. Both are read again when they change.
        tls_key: File with the certificate's key, in PEM, not encrypted.
        metrics_port: Port of ``/metrics`` and ``/debug`` alone, which are not at ``port`` then; 0
            takes a free one. With replicas, that of all replicas' metrics.
        root_path: Path at which a proxy has put the server, such as ``/llm``; requests come with it
            or without.
        workers: HTTP processes that share the port and the engine.
        drain_seconds: How long running requests get to finish when the server stops.
        api_key: Keys that clients must give one of. Without any key everyone is let in. The list of
            processes shows a flag: the variable, or ``api_key_file``, keeps a key secret.
        api_key_file: TOML file with named keys and their limits; read again when it changes.
        admin_key: Key of ``/admin``, which is closed without one.
        metrics_key: Key of ``/metrics`` and ``/debug``. None lets in who has an API key, or
            everyone where there are none.
        allow_origin: Origins of web pages that may use the server; ``*`` is any.
        allow_host: Further names in a request's Host header. On a loopback address others than
            its own are refused: a web page could reach the server by a name that it points there.
        body_bytes: Longest request body.
        file_bytes: Longest file that is uploaded.
        max_connections: Most connections at once, of each worker.
        idle_seconds: How long a connection stays open without a request, or with a part of its
            head. More than a proxy keeps its connections: it would send a request into one that is
            being closed.
        max_prompts: Most prompts of one completions request.
        max_choices: Most answers of one request: prompts times ``n``.
        max_tools: Most tools of one request.
        unknown_fields: ``refuse`` requests with fields that are not known, or ``warn``.
        max_messages: Most messages of one conversation.
        trust_request_chat_template: Take ``chat_template`` of requests in the place of the model's
            own. It is a program, which runs within the limits of the model's.
        page: Serve a page to chat at ``/``.
        log_level: Least severe of the lines that are logged.
        log_format: ``text``, or ``json``: an object a line.
        log_prompts: Log the bodies of requests too.
        otlp_endpoint: OpenTelemetry collector that is sent a span of every request, such as
            ``http://localhost:4318``; needs ``pyengine-llm[otel]``.
        store: File of what clients have stored; None keeps it in memory, or with several workers in
            a file that ends with the server.
        store_bytes: Room for all that is stored; the oldest makes room. 0 stores nothing.
        store_seconds: How long it is kept.

    Raises:
        ConfigError: A value is out of its range; the message names it.
    """

    host: str = "127.0.0.1"
    port: int = 8000
    uds: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    metrics_port: int | None = None
    root_path: str = ""
    workers: int = 1
    drain_seconds: float = 30.0
    api_key: tuple[str, ...] = field(default=(), repr=False)
    api_key_file: str | None = None
    admin_key: str | None = field(default=None, repr=False)
    metrics_key: str | None = field(default=None, repr=False)
    allow_origin: tuple[str, ...] = ()
    allow_host: tuple[str, ...] = ()
    body_bytes: int = 4 << 20
    file_bytes: int = 64 << 20
    max_connections: int = 8192
    idle_seconds: float = 75.0
    max_prompts: int = 128
    max_choices: int = 128
    max_tools: int = 1024
    unknown_fields: UnknownFields = "refuse"
    max_messages: int = 10_000
    trust_request_chat_template: bool = False
    page: bool = True
    log_level: LogLevel = "info"
    log_format: LogFormat = "text"
    log_prompts: bool = False
    otlp_endpoint: str | None = None
    store: str | None = None
    store_bytes: int = 256 << 20
    store_seconds: float = 30 * 24 * 3600.0

    def __post_init__(self) -> None:
        check_types(self)
        check_rules(self, _RULES)

    @classmethod
    def from_environment(cls, **overrides: Any) -> Self:
        """The configuration from ``PYENGINE_<NAME>`` variables, under ``overrides`` that are given.

        Raises:
            ConfigError: A variable does not read as its type, or a value is out of its range.
        """
        values = settings_from_environment(SERVER_TYPES)
        values |= {name: value for name, value in overrides.items() if value is not None}
        return cls(**values)

    @property
    def reloaded_files(self) -> list[str]:
        """The files that are read again when they change, or on SIGHUP."""
        files = (self.api_key_file, self.tls_cert, self.tls_key)
        return [path for path in files if path is not None]

    @property
    def locked(self) -> bool:
        """Whether clients need a key."""
        return bool(self.api_key) or self.api_key_file is not None


SERVER_TYPES: dict[str, Any] = setting_types(ServerConfig)
"""The type of each setting, by name."""


def _file(name: str) -> Rule[ServerConfig]:
    def holds(config: ServerConfig) -> bool:
        path = getattr(config, name)
        return path is None or Path(path).is_file()

    return Rule(name, "a file that exists", holds)


_RULES: tuple[Rule[ServerConfig], ...] = (
    *map(
        at_least_one,
        (
            "workers", "body_bytes", "file_bytes", "max_connections", "max_prompts", "max_choices",
            "max_tools", "max_messages",
        ),
    ),
    Rule("port", "from 0 to 65535", lambda c: 0 <= c.port <= 65535),
    Rule("metrics_port", "from 0 to 65535", lambda c: 0 <= (c.metrics_port or 0) <= 65535),
    _file("tls_cert"),
    _file("tls_key"),
    Rule("tls_cert", "given with 'tls_key'", lambda c: (c.tls_cert is None) == (c.tls_key is None)),
    Rule("drain_seconds", "0 or more", lambda c: c.drain_seconds >= 0),
    Rule("idle_seconds", "over 0", lambda c: c.idle_seconds > 0),
    Rule("store_bytes", "0 or more", lambda c: c.store_bytes >= 0),
    Rule("store_seconds", "over 0", lambda c: c.store_seconds > 0),
    Rule(
        "root_path",
        "empty, or a path such as /llm",
        lambda c: not c.root_path or (c.root_path.startswith("/") and c.root_path != "/"),
    ),
    _file("api_key_file"),
)  # fmt: skip

"""The log of requests: one line each, when it has ended.

Lines wait in a list, and a thread encodes and writes them a few times a second: a request costs the
loop an append, and a reader of the log that hangs costs it nothing. Lines beyond ``MAX_WAITING``
are dropped, and their number is logged.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol

import msgspec

from pyengine.completion import Outcome
from pyengine.errors import PyengineError, RequestTimeoutError
from pyengine.http.access.keys import ApiKey
from pyengine.http.rsgi import Scope
from pyengine.logs import LogFormat, LogLevel, output, stamp

FLUSH_S = 0.1
MAX_WAITING = 20_000

# Asked every few seconds by machines; logged at debug, but for the first of equal failures.
_PROBES = frozenset({"/health", "/ready", "/ping", "/metrics", "/debug/record"})
_MOST_OF_A_PATH = 200
_LEVELS = ("debug", "info", "warning", "error")


class Line(msgspec.Struct, omit_defaults=True, gc=False):
    """One request. Text of prompts and answers is in ``request`` only.

    Attributes:
        time: When it ended.
        level: ``error`` for a 5xx but a client's own timeout, ``debug`` for a probe that succeeds,
            or fails as the one before it, else ``info``.
        event: ``request``.
        id: The answer's x-request-id.
        method: The method of the HTTP request.
        path: Without the query, the first 200 characters.
        status: The HTTP status; 499 if the client left before the answer began.
        duration_ms: From the request's head to the answer's end.
        key: Name of the API key.
        model: The served model.
        tokens_in: Tokens of the prompts.
        tokens_out: Tokens of the answers.
        tokens_cached: Prompt tokens that came from the prefix cache.
        ttft_ms: From the request's arrival at the engine to the first token.
        finish: Why the answer ended; of several, those that differ.
        error: The error's code; of a 5xx its message too.
        request: The body, with ``--log-prompts``.
    """

    time: str
    level: str
    event: str
    id: str
    method: str
    path: str
    status: int
    duration_ms: float
    key: str | None = None
    model: str | None = None
    tokens_in: int | None = None
    tokens_out: int | None = None
    tokens_cached: int | None = None
    ttft_ms: float | None = None
    finish: str | None = None
    error: str | None = None
    request: msgspec.Raw | str | None = None


class Ended(Protocol):
    """The attributes of an exchange that the log reads; see there."""

    scope: Scope
    path: str
    request_id: str
    status: int
    error: PyengineError | None
    key: ApiKey | None
    body: bytes | None
    begun_ns: int

    @property
    def outcomes(self) -> list[Outcome]:
        """How the answers to its prompts ended."""


class RequestLog:
    """Writes the lines of one HTTP process. Belongs to the loop that serves."""

    def __init__(
        self,
        level: LogLevel = "info",
        form: LogFormat = "text",
        *,
        prompts: bool = False,
        write: Callable[[bytes], object] | None = None,
    ) -> None:
        """Write to stderr, or with ``write``, the lines from ``level`` on."""
        self.prompts = prompts
        self._least = _LEVELS.index(level)
        self._form = form
        self._write = write or output(2).write
        self._probed: dict[str, tuple[int, str | None]] = {}
        self._waiting: list[Line] = []
        self._dropped = 0
        self._timer: asyncio.TimerHandle | None = None
        self._writing: asyncio.Future[None] | None = None

    def record(self, exchange: Ended, model: str) -> None:
        """Log a request that has ended; ``model`` is the one that is served."""
        status = exchange.status
        probe = exchange.path in _PROBES and not self._is_news(exchange)
        failed = status >= 500 or (exchange.error is not None and exchange.error.status >= 500)
        failed = failed and not isinstance(exchange.error, RequestTimeoutError)  # the client's own
        level = "debug" if probe else "error" if failed else "info"
        if _LEVELS.index(level) < self._least:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._dropped += 1
            return
        self._waiting.append(_line(exchange, model, level, self.prompts))
        if self._timer is None and self._writing is None:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _is_news(self, probe: Ended) -> bool:
        """Whether a probe fails, and not as the one before it."""
        found = probe.status, None if probe.error is None else probe.error.code
        before, self._probed[probe.path] = self._probed.get(probe.path), found
        return probe.status >= 400 and found != before

    def _flush(self) -> None:
        self._timer = None
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._put, self._take())
        self._writing.add_done_callback(self._written)

    def _written(self, writing: "asyncio.Future[None]") -> None:
        self._writing = None
        if not writing.cancelled():
            writing.exception()  # stderr is gone; there is nowhere to say so
        if self._waiting:
            self._timer = asyncio.get_running_loop().call_later(FLUSH_S, self._flush)

    def _take(self) -> tuple[list[Line], int]:
        lines, self._waiting = self._waiting, []
        dropped, self._dropped = self._dropped, 0
        return lines, dropped

    def _put(self, taken: tuple[list[Line], int]) -> None:
        lines, dropped = taken
        data = b"".join(map(_as_json if self._form == "json" else _as_text, lines))
        if dropped:
            now = stamp(time.time())
            data += f"{now} warning: {dropped} lines of requests were dropped\n".encode()
        self._write(data)

    async def close(self) -> None:
        """Write what waits."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._writing is not None:
            await asyncio.gather(self._writing, return_exceptions=True)
        if self._waiting:
            await asyncio.to_thread(self._put, self._take())


def _line(exchange: Ended, model: str, level: str, prompts: bool) -> Line:
    now, error = time.time(), exchange.error
    line = Line(
        stamp(now),
        level,
        "request",
        exchange.request_id,
        exchange.scope.method,
        exchange.path[:_MOST_OF_A_PATH],
        exchange.status,
        round((time.monotonic_ns() - exchange.begun_ns) * 1e-6, 2),
        None if exchange.key is None else exchange.key.name,
    )
    outcomes = exchange.outcomes
    if outcomes:
        line.model = model
        usages = [outcome.usage for outcome in outcomes]
        line.tokens_in = sum(usage.prompt_tokens for usage in usages)
        line.tokens_out = sum(usage.completion_tokens for usage in usages)
        line.tokens_cached = sum(usage.cached_tokens for usage in usages)
        waits = [o.timing.first_ns - o.timing.arrival_ns for o in outcomes if o.timing.first_ns]
        line.ttft_ms = round(min(waits) * 1e-6, 2) if waits else None
        line.finish = ",".join(dict.fromkeys(outcome.finish or "abort" for outcome in outcomes))
    if error is not None:
        line.error = error.code or error.type
        if error.status >= 500:
            line.error += f": {error.message}"
    if prompts and exchange.body is not None:
        try:
            msgspec.json.decode(exchange.body)
            line.request = msgspec.Raw(b" ".join(exchange.body.splitlines()))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            line.request = exchange.body.decode("utf-8", "backslashreplace")
    return line


def _as_json(line: Line) -> bytes:
    return msgspec.json.encode(line) + b"\n"


def _as_text(line: Line) -> bytes:
    fields = msgspec.structs.asdict(line)
    head = [fields.pop(name) for name in ("time", "level", "event", "method", "path", "status")]
    rest = [f"{name}={_shown(value)}" for name, value in fields.items() if value is not None]
    text = "{} {}: {} {} {} {} {}".format(*map(_shown, head), " ".join(rest))
    return text.encode("utf-8", "backslashreplace") + b"\n"


def _shown(value: object) -> str:
    """A value in a line of text; quoted where it has spaces or control characters."""
    text = bytes(value).decode("utf-8", "replace") if isinstance(value, msgspec.Raw) else str(value)
    return text if text.isprintable() and " " not in text else msgspec.json.encode(text).decode()

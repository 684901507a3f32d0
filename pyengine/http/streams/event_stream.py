"""An answer in parts, kept alive while nothing comes for it."""

import asyncio
import secrets
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pyengine.http.rsgi import HTTPStreamTransport

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# Clients skip comments; proxies count them as traffic.
KEEP_ALIVE = b": keep-alive\n\n"


@dataclass(frozen=True)
class StreamForm:
    """How the parts of an answer are told apart.

    Attributes:
        content_type: The content type of the answer.
        keep_alive: Written while nothing else is; None where clients would not skip it.
    """

    content_type: str
    keep_alive: bytes | None


EVENTS = StreamForm("text/event-stream; charset=utf-8", KEEP_ALIVE)
LINES = StreamForm("application/x-ndjson", None)

# Intervals that an answer which has not begun waits for: until then, a request that is refused, by
# a grammar that takes long to compile for instance, gets a status of its own.
PATIENCE = 3
_HEADERS = (
    ("cache-control", "no-cache"),
    ("x-accel-buffering", "no"),  # nginx would hold chunks back
)


class EventStream:
    """The answer of one exchange. Lives on the serving loop, from here until :meth:`end`.

    A comment is written when nothing else was for ``Limits.keep_alive_seconds``, if the form has
    comments.
    """

    def __init__(self, exchange: "Exchange", form: StreamForm = EVENTS) -> None:
        """Not begun yet."""
        self._exchange = exchange
        self._form = form
        self._transport: HTTPStreamTransport | None = None
        self._interval = exchange.service.limits.keep_alive_seconds
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._timer: asyncio.TimerHandle | None = None
        if form.keep_alive is not None:
            self._timer = self._loop.call_later(self._interval, self._keep_alive, form.keep_alive)

    @property
    def begun(self) -> bool:
        """Whether the answer has begun, so that a failure is an event of it."""
        return self._transport is not None

    def begin(self) -> HTTPStreamTransport:
        """Send the head of the answer, unless it is sent already."""
        if self._transport is None:
            self._exchange.began, self._exchange.status = True, 200
            headers = [*self._exchange.headers(self._form.content_type), *_HEADERS]
            self._transport = self._exchange.proto.response_stream(200, headers)
        return self._transport

    @property
    def takes_all(self) -> bool:
        """Whether a write never waits for the client. ASGI servers make the writer wait."""
        return isinstance(self._transport, HTTPStreamTransport)

    def write(self, data: bytes) -> Awaitable[None]:
        """Write events. The call does the work; awaiting it waits for the client."""
        self._written = self._loop.time()
        return self.begin().send_bytes(data)

    def _keep_alive(self, comment: bytes) -> None:
        patience = self._interval if self.begun else PATIENCE * self._interval
        left = self._written + patience - self._loop.time()
        if left <= 0:
            self.write(comment)
            left = self._interval
        self._timer = self._loop.call_later(min(left, self._interval), self._keep_alive, comment)

    def end(self) -> None:
        """Let go of the answer: granian ends it with the last reference to its transport."""
        if self._timer is not None:
            self._timer.cancel()
        self._transport = None


def padding(length: int) -> str:
    """Returns random characters that make ``length`` bytes a multiple of 32.

    The sizes of a stream's deltas tell nothing of their texts then.
    """
    size = -length % 32
    return secrets.token_urlsafe(size)[:size]

"""An answer as server-sent events, kept alive while nothing comes for it."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING

from pyengine.http.rsgi import HTTPStreamTransport

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

# Clients skip comments; proxies count them as traffic.
KEEP_ALIVE = b": keep-alive\n\n"
# An answer that has not begun waits for so many intervals: until then, a request that is refused,
# by a grammar that takes long to compile for instance, gets a status of its own.
PATIENCE = 3


class EventStream:
    """The answer of one exchange. Lives on the serving loop, from here until :meth:`end`.

    A comment is written when nothing else was for ``Limits.keep_alive_seconds``.
    """

    def __init__(self, exchange: "Exchange") -> None:
        """Not begun yet."""
        self._exchange = exchange
        self._transport: HTTPStreamTransport | None = None
        self._interval = exchange.service.limits.keep_alive_seconds
        self._loop = asyncio.get_running_loop()
        self._written = self._loop.time()
        self._timer = self._loop.call_later(PATIENCE * self._interval, self._keep_alive)

    @property
    def begun(self) -> bool:
        """Whether the answer has begun, so that a failure is an event of it."""
        return self._transport is not None

    def begin(self) -> HTTPStreamTransport:
        """Send the head of the answer, unless it is sent already."""
        if self._transport is None:
            self._exchange.began, self._exchange.status = True, 200
            self._transport = self._exchange.proto.response_stream(200, _headers(self._exchange))
        return self._transport

    @property
    def takes_all(self) -> bool:
        """Whether a write never waits for the client. ASGI servers make the writer wait."""
        return isinstance(self._transport, HTTPStreamTransport)

    def write(self, data: bytes) -> Awaitable[None]:
        """Write events. The call does the work; awaiting it waits for the client."""
        self._written = self._loop.time()
        return self.begin().send_bytes(data)

    def _keep_alive(self) -> None:
        left = self._written + self._interval - self._loop.time()
        if left <= 0:
            self.write(KEEP_ALIVE)
            left = self._interval
        self._timer = self._loop.call_later(left, self._keep_alive)

    def end(self) -> None:
        """Let go of the answer: granian ends it with the last reference to its transport."""
        self._timer.cancel()
        self._transport = None


def _headers(exchange: "Exchange") -> list[tuple[str, str]]:
    return [
        *exchange.headers("text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),  # nginx would hold chunks back
    ]

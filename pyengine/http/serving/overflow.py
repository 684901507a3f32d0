"""Connections beyond the limit: a health check is answered, all others are turned away with 503.

The HTTP library stops accepting when its connections are all taken. The kernel then queues what
comes, health checks too, and a load balancer would take a full server for a dead one. Here the
queue is emptied while that lasts, with a few file descriptors that are kept free for it::

    clients ──► listening socket ──► the HTTP library      while it has connections left
                        └──────────► Overflow              while it has none

Of connections that are still in their TLS handshake the library accepts any number, and where no
file descriptor is left it gives up none. So with TLS it is held back at the limit, and the
descriptors that it must not take are occupied until then.
"""

import asyncio
import contextlib
import logging
import math
import os
import resource
import select
import socket
from pathlib import Path
from typing import Protocol

from pyengine.errors import ConfigError, OverloadedError, PyengineError
from pyengine.http.errors import error_body, error_headers
from pyengine.http.service import Service
from pyengine.http.serving.granian_server import Certificate

log = logging.getLogger("pyengine.http")

CHECK_S = 0.1
# How many connections beyond the limit are open at once. The oldest makes room for a new one.
OPEN = 64
# How many are taken at once, and how long after the next.
AT_ONCE = 16
BREATH_S = 0.005
# What a client beyond the limit has for its request, and then for reading the answer.
PATIENCE_S = 2.0
# Descriptors that connections never get: those of Overflow, and files that are opened meanwhile.
RESERVE = OPEN + 32
# With TLS, the HTTP library is held back this many descriptors before the last one.
SLACK = 16
_HEAD_BYTES = 16 << 10


def connection_limit(wanted: int) -> int:
    """How many connections this process can hold, at most ``wanted``.

    Raises the soft limit of open files as far as the hard one allows and ``wanted`` needs.
    """
    used = open_descriptors() + RESERVE
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < used + wanted:
        soft = used + wanted if hard == resource.RLIM_INFINITY else min(hard, used + wanted)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        if soft < used + wanted:
            log.warning(
                "the limit of open files (%d, see ulimit -n) leaves %d connections, not %d",
                soft,
                max(1, soft - used),
                wanted,
            )
            return max(1, soft - used)
    return wanted


def open_descriptors() -> int:
    """The file descriptors that this process has open. O(1) from Linux 6.2 on, else O(those)."""
    try:
        folder = Path("/proc/self/fd")
        return folder.stat().st_size or sum(1 for _ in folder.iterdir())
    except OSError:  # none is left to look with
        return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


class Gate(Protocol):
    """Lets connections in to the HTTP library."""

    def hold(self) -> None:
        """Let no more in. Idempotent."""

    def go_on(self) -> None:
        """Let in those that come from now on."""


class Reserve:
    """The descriptors that connections never get, occupied or free."""

    def __init__(self) -> None:
        """Free."""
        self._occupied: list[int] = []

    @property
    def free(self) -> int:
        """Number of connections that are free."""
        return RESERVE - len(self._occupied)

    def occupy(self) -> None:
        """Keep all others from taking them, as far as there are any left."""
        try:
            while self.free:
                self._occupied.append(os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC))
        except OSError:
            pass  # again at the next time

    def release(self) -> None:
        """Leave them to those who know that they are kept."""
        while self._occupied:
            os.close(self._occupied.pop())


class Overflow:
    """Accepts what waits at a listening socket while all connections are taken.

    Lives on the serving loop.
    """

    def __init__(
        self,
        service: Service,
        listener: socket.socket,
        connections: int,
        certificate: Certificate | None = None,
    ) -> None:
        """Not accepting yet.

        Args:
            service: Knows whether requests are taken.
            listener: The socket that the HTTP library accepts from; closed by :meth:`close`.
            connections: How many connections the HTTP library holds at most.
            certificate: For TLS.
        """
        self._service = service
        self._listener = listener
        self._full = open_descriptors() + connections
        self._connections = connections
        self._certificate = certificate
        self._context = None if certificate is None else certificate.context()
        self._gate: Gate | None = None
        self._exhausted = math.inf
        self._reserve = Reserve()
        self._queued = select.poll()
        self._queued.register(listener, select.POLLIN)
        self._clients: dict[asyncio.Task[None], None] = {}  # by age
        self._turned_away: int | None = None  # None while connections are left
        self._task = asyncio.create_task(self._watch())

    def guard(self, gate: Gate) -> None:
        """Hold the HTTP library back by ``gate`` where it would take more than its connections."""
        self._gate = gate
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        self._exhausted = math.inf if soft == resource.RLIM_INFINITY else soft - SLACK
        self._full += RESERVE
        self._reserve.occupy()

    async def close(self) -> None:
        """Stop, and close the connections beyond the limit."""
        tasks = [self._task, *self._clients]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._reserve.release()
        self._listener.close()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(CHECK_S)
            while self._taken():
                self._begin()
                if not self._accept():
                    break
                await asyncio.sleep(BREATH_S)  # those that made room are closed meanwhile
            else:
                self._end()

    def _taken(self) -> bool:
        """Whether connections wait because all are taken, or descriptors run out."""
        if self._used() >= self._exhausted:
            return True
        return bool(self._queued.poll(0)) and self._used() >= self._full

    def _used(self) -> int:
        """Descriptors that are open or reserved, without those of clients here."""
        reserve = 0 if self._gate is None else self._reserve.free
        return open_descriptors() + reserve - len(self._clients)

    def _begin(self) -> None:
        if self._gate is not None:
            self._gate.hold()
            self._reserve.release()
        if self._turned_away is None:
            self._turned_away = 0
            if self._certificate is not None:
                with contextlib.suppress(ConfigError):  # its files are being replaced
                    self._context = self._certificate.context()
            log.warning(
                "all %d connections are taken; until one ends, others are turned away with 503, "
                "health checks excepted",
                self._connections,
            )

    def _end(self) -> None:
        if self._turned_away is not None and self._used() < min(self._full, self._exhausted - OPEN):
            if self._gate is not None:
                self._gate.go_on()
                self._accept()  # what came while no other could take it
                self._reserve.occupy()
            log.warning("connections are free again; %d were turned away", self._turned_away)
            self._turned_away = None

    def _accept(self) -> bool:
        """Take some of the connections that wait; returns whether there may be more."""
        for _ in range(AT_ONCE):
            if not self._queued.poll(0):
                return False
            try:
                connection, _ = self._listener.accept()
            except OSError:  # gone again, or the HTTP library was faster
                return False
            if len(self._clients) >= OPEN:
                oldest = next(iter(self._clients))
                del self._clients[oldest]
                oldest.cancel()
            task = asyncio.create_task(self._serve(connection))
            self._clients[task] = None
            task.add_done_callback(lambda ended: self._clients.pop(ended, None))
        return True

    async def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        reader, loop = asyncio.StreamReader(), asyncio.get_running_loop()
        protocol = asyncio.StreamReaderProtocol(reader)
        try:
            async with asyncio.timeout(PATIENCE_S):
                transport, _ = await loop.connect_accepted_socket(
                    lambda: protocol, connection, ssl=self._context
                )
                await self._converse(reader, transport)
        except (OSError, TimeoutError):
            pass  # the client has left, or sends nothing

    async def _converse(
        self, reader: asyncio.StreamReader, transport: asyncio.WriteTransport
    ) -> None:
        """Answer one request; the transport closes the connection once that is written."""
        try:
            transport.write(self._answer(await reader.read(_HEAD_BYTES)))
            if transport.can_write_eof():
                transport.write_eof()
                # Closing a socket that has unread bytes would take the answer back.
                while await reader.read(_HEAD_BYTES):
                    pass
        finally:
            transport.close()

    def _answer(self, head: bytes) -> bytes:
        status, body, headers = "200 OK", b'{"status":"ok"}', []
        try:
            if head.startswith(b"GET /ready "):
                self._service.require_responsive()
            elif not head.startswith((b"GET /health ", b"HEAD /health ")):
                if self._turned_away is not None:
                    self._turned_away += 1
                raise OverloadedError(
                    "all connections of the server are taken; try again in a moment"
                )
        except PyengineError as error:
            status, body = f"{error.status} Unavailable", error_body(error)
            headers = error_headers(error)
        head_lines = [
            f"HTTP/1.1 {status}",
            "content-type: application/json",
            f"content-length: {len(body)}",
            *(f"{name}: {value}" for name, value in headers if name != "connection"),
            "connection: close",
        ]
        return "\r\n".join([*head_lines, "", ""]).encode() + body

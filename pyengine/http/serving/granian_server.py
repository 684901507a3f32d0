"""granian's embedded server, over a socket that listens already, with a certificate or without."""

import asyncio
import os
import socket
import ssl
from pathlib import Path
from typing import Any, Protocol

import msgspec
from granian._granian import SocketHolder
from granian.constants import HTTPModes, SSLProtocols
from granian.http import HTTP1Settings
from granian.log import LogLevels
from granian.server.embed import Server

from pyengine.errors import ConfigError
from pyengine.http.limits import Limits
from pyengine.http.rsgi import Scope
from pyengine.http.serving.sockets import unknown_listener
from pyengine.settings.server import ServerConfig

# granian configures logging when it is made; this changes its own level only, and leaves the
# process's other loggers as they are.
_LOGGING = {"incremental": True, "formatters": {}, "handlers": {}, "loggers": {"_granian": {}}}

# What is longer than a limit of the application's must reach it, to get an answer with a body.
_HEADS_IN_A_BUFFER = 4


class Application(Protocol):
    """An RSGI application."""

    limits: Limits

    async def __rsgi__(self, scope: Scope, proto: Any) -> None:
        """Serve one request."""


class Certificate(msgspec.Struct, frozen=True):
    """The files of a certificate chain and of its key, in PEM."""

    chain: str
    key: str

    @classmethod
    def of(cls, config: ServerConfig) -> "Certificate | None":
        """The certificate of ``config``, if it has one.

        Raises:
            ConfigError: They cannot be read, or do not belong together.
        """
        if config.tls_cert is None or config.tls_key is None:
            return None
        certificate = cls(config.tls_cert, config.tls_key)
        certificate.context()
        return certificate

    def context(self) -> ssl.SSLContext:
        """For connections that granian does not take.

        Raises:
            ConfigError: The files cannot be read, or do not belong together.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        try:
            context.load_cert_chain(self.chain, self.key, password="")
        except (OSError, ValueError) as error:  # of TLS too
            raise ConfigError(
                f"the certificate {self.chain} with the key {self.key}: {error}", param="tls_cert"
            ) from None
        return context


class GranianServer(Server):
    """granian's embedded server, over a socket that listens already.

    Its own sockets share their port with other processes (SO_REUSEPORT), so a port in use would not
    be noticed; and this one takes connections before granian has started.
    """

    def __init__(
        self,
        app: Application,
        listener: socket.socket,
        connections: int,
        certificate: Certificate | None = None,
    ) -> None:
        limits = app.limits
        super().__init__(
            app,
            # To tell HTTP/2 from HTTP/1 it would wait for a first byte, without a deadline.
            http=HTTPModes.http1,
            http1_settings=HTTP1Settings(
                header_read_timeout=round(1000 * limits.idle_seconds),
                max_buffer_size=_HEADS_IN_A_BUFFER * limits.head_bytes,
            ),
            websockets=False,
            backlog=limits.backlog,
            backpressure=connections,
            log_level=LogLevels.error,
            log_dictconfig=_LOGGING,
            ssl_cert=None if certificate is None else Path(certificate.chain),
            ssl_key=None if certificate is None else Path(certificate.key),
            ssl_protocol_min=SSLProtocols.tls12,
        )
        # granian owns the descriptor from here on and closes it.
        unix = listener.family == socket.AF_UNIX
        self._descriptor = listener.detach()
        self._listener = SocketHolder(self._descriptor, unix, limits.backlog)  # type: ignore[call-arg]

    def _init_shared_socket(self) -> None:
        self._shd = self._listener  # type: ignore[assignment]

    def accept_from(self, listener: socket.socket) -> None:
        """Take the connections of ``listener`` from now on, in the place of those before.

        Those that are taken go on, handshakes too, which granian breaks off when it is told to
        stop. Not for a server that was stopped: it has closed its descriptor.
        """
        os.dup2(listener.fileno(), self._descriptor, inheritable=False)


class Port:
    """An application on a listening socket. Used on the loop that serves."""

    def __init__(
        self,
        app: Application,
        listener: socket.socket,
        connections: int,
        certificate: Certificate | None,
    ) -> None:
        """Take connections from now on; ``listener`` is closed by :meth:`stop`."""
        self._app = app
        self._listener = listener
        if listener.family != socket.AF_UNIX:
            # Connections inherit it; it also ends those whose client reads nothing more.
            unread_ms = round(1000 * app.limits.unread_seconds)
            listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, unread_ms)
        self._connections = connections
        self._certificate = certificate
        self._running: dict[asyncio.Task[None], GranianServer] = {}
        self._retiring: set[asyncio.TimerHandle] = set()
        self._held: GranianServer | None = None
        # There may be no descriptor left to make it with, once it is needed.
        self._unknown = unknown_listener(listener.family == socket.AF_UNIX)
        self._serving = self._start()

    def _start(self) -> "asyncio.Task[None]":
        server = GranianServer(
            self._app, self._listener.dup(), self._connections, self._certificate
        )
        task = asyncio.create_task(server.serve())
        self._running[task] = server
        task.add_done_callback(self._running.pop)
        return task

    def renew(self) -> None:
        """Take new connections with the certificate as its files are now; the old ones go on.

        Until the deadline of a request's head: then a connection without a request is closed, and
        one with a request behind its answer.

        Raises:
            ConfigError: It cannot be read; the old one stays.
        """
        if self._certificate is None:
            return
        self._certificate.context()
        before = self._running.get(self._serving)
        self._serving = self._start()
        if before is not None:
            before.accept_from(self._unknown)
            self._stop_later(before)

    def hold(self) -> None:
        """Let no more connections in until :meth:`go_on`. Idempotent."""
        server = self._running.get(self._serving)
        if server is not None and server is not self._held:
            server.accept_from(self._unknown)
            self._held = server

    def go_on(self) -> None:
        """Let connections in again, those that come from now on."""
        held, self._held = self._held, None
        if held is not None and held is self._running.get(self._serving):
            held.accept_from(self._listener)

    def _stop_later(self, server: GranianServer) -> None:
        def stop() -> None:
            self._retiring.discard(timer)
            server.stop()  # type: ignore[no-untyped-call]

        loop = asyncio.get_running_loop()
        timer = loop.call_later(self._app.limits.idle_seconds, stop)
        self._retiring.add(timer)

    async def wait_closed(self) -> None:
        """Wait until the server has ended."""
        while not self._serving.done():
            await asyncio.wait({self._serving})

    async def stop(self) -> None:
        """Close the socket and all connections."""
        for timer in self._retiring:
            timer.cancel()
        for server in self._running.values():
            server.stop()  # type: ignore[no-untyped-call]
        await asyncio.gather(*self._running)
        self._unknown.close()
        self._listener.close()

"""granian's embedded server, over a socket that listens already, with a certificate or without."""

import asyncio
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
from pyengine.settings.server import ServerConfig

# granian configures logging when it is made; this changes its own level only, and leaves the
# process's other loggers as they are.
_LOGGING = {"incremental": True, "formatters": {}, "handlers": {}, "loggers": {"_granian": {}}}


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
        """Those of ``config``, if it has them.

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
            http1_settings=HTTP1Settings(header_read_timeout=round(1000 * limits.header_seconds)),
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
        self._listener = SocketHolder(listener.detach(), unix, limits.backlog)  # type: ignore[call-arg]

    def _init_shared_socket(self) -> None:
        self._shd = self._listener  # type: ignore[assignment]


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
        self._connections = connections
        self._certificate = certificate
        self._running: dict[asyncio.Task[None], GranianServer] = {}
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

        Raises:
            ConfigError: It cannot be read; the old one stays.
        """
        if self._certificate is None:
            return
        self._certificate.context()
        before = list(self._running.values())
        self._serving = self._start()
        for server in before:
            server.stop()  # type: ignore[no-untyped-call]

    async def wait_closed(self) -> None:
        """Wait until the server has ended."""
        while not self._serving.done():
            await asyncio.wait({self._serving})

    async def stop(self) -> None:
        """Close the socket and all connections."""
        for server in self._running.values():
            server.stop()  # type: ignore[no-untyped-call]
        await asyncio.gather(*self._running)
        self._listener.close()

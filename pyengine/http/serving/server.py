"""The server: granian on the running loop, from the open port to the last drained stream.

::

    listen ──► load the model (/ready says 503) ──► serve ──► SIGTERM, SIGINT
                                                                  │ refuse what is new
                                                                  ▼
                             close ◄── abort the rest ◄── drain, at most Limits.drain_seconds

A second signal ends the draining at once. A client that closes its writing half counts as gone, as
one does that closes the connection: the HTTP library cannot distinguish them.
"""

import asyncio
import contextlib
import logging
import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, NoReturn

from pyengine import logs
from pyengine.async_engine import AsyncEngine
from pyengine.errors import EngineDeadError
from pyengine.http.access.door import Door
from pyengine.http.access.source import AccessSource
from pyengine.http.app import App
from pyengine.http.limits import Limits
from pyengine.http.operations.request_log import RequestLog
from pyengine.http.operations.tracing import Tracing
from pyengine.http.serving.granian_server import Certificate, Port
from pyengine.http.serving.notify import notify_ready
from pyengine.http.serving.overflow import Overflow, connection_limit
from pyengine.http.serving.parts import Part
from pyengine.http.serving.reload import reloading
from pyengine.http.serving.sockets import (
    listen,
    listeners,
    metrics_listeners,
    remove_path,
    url_of,
)
from pyengine.http.store.store import Store, StoreLimits
from pyengine.settings.server import ServerConfig

log = logging.getLogger("pyengine.http")

# The exit status of a server that ended before all answers were whole.
BROKEN_OFF = 3
# Connections to the metrics' own port at once.
SCRAPERS = 64


class HttpServer:
    """The endpoint on a port. Everything is called on the loop that serves.

    Attributes:
        app: The application; its ``active`` counts the requests being served.
        url: The server's URL, once started.
        broken_off: Answers that were not whole when the server stopped.
    """

    def __init__(
        self,
        engine: AsyncEngine,
        *,
        host: str = "127.0.0.1",
        port: int = 8000,
        limits: Limits | None = None,
        tracing: Tracing | None = None,
        door: Door | None = None,
        request_log: RequestLog | None = None,
        listener: socket.socket | None = None,
        metrics_listener: socket.socket | None = None,
        certificate: Certificate | None = None,
        store: Store | None = None,
    ) -> None:
        """Serve ``engine``, which may still be loading.

        Args:
            engine: The engine that generates.
            host: Address or name to listen on.
            port: Port to listen on; 0 takes a free one.
            limits: Bounds of requests.
            tracing: Makes spans of requests.
            door: Lets requests in; None lets in all.
            request_log: Writes a line a request.
            listener: A socket that listens already, in the place of host and port.
            metrics_listener: One of the metrics' own; None has them with the rest.
            certificate: For TLS; None serves without.
            store: What clients have asked to be kept; None is memory.
        """
        self.app = App(engine, limits, tracing, door, request_log, store)
        self.url = ""
        self.broken_off = 0
        self._address = (host, port)
        self._listener = listener
        self._metrics_listener = metrics_listener
        self._certificate = certificate
        self._ports: list[Port] = []
        self._overflow: Overflow | None = None

    async def start(self) -> str:
        """Listen; connections are taken when this returns. Returns the URL.

        Raises:
            ConfigError: The port is in use, or the address is not this machine's.
        """
        host, port = self._address
        listener, self._listener = self._listener, None
        if listener is None:
            listener = listen(host, port, self.app.limits.backlog)
        certificate, metrics = self._certificate, self._metrics_listener
        self.url = url_of(listener, host, "http" if certificate is None else "https")
        connections = connection_limit(self.app.limits.max_connections)
        self._overflow = Overflow(self.app, listener.dup(), connections, certificate)
        if metrics is None:
            self._ports = [Port(self.app, listener, connections, certificate)]
        else:
            rest, part = Part(self.app, metrics=False), Part(self.app, metrics=True)
            self._ports = [
                Port(rest, listener, connections, certificate),
                Port(part, metrics, SCRAPERS, certificate),
            ]
        if certificate is not None:
            self._overflow.guard(self._ports[0])
        self.app.start()
        return self.url

    def renew_certificate(self) -> None:
        """Read the certificate again, for new connections.

        Raises:
            ConfigError: It cannot be read; the old one stays.
        """
        for port in self._ports:
            port.renew()

    async def wait_closed(self) -> None:
        """Wait until the server has ended."""
        await self._ports[0].wait_closed()

    async def stop(self, drain_seconds: float | None = None) -> None:
        """Refuse new requests, let the running ones finish, and close. Idempotent.

        Args:
            drain_seconds: How long they get; None takes ``Limits.drain_seconds``.
        """
        if not self._ports or self._overflow is None:
            return
        if drain_seconds is None:
            drain_seconds = self.app.limits.drain_seconds
        aborted = await self.app.drain(drain_seconds)
        self.broken_off += aborted
        if aborted:
            log.warning("aborted %d requests that were still running", aborted)
        await self._overflow.close()
        ports, self._ports = self._ports, []
        for port in ports:
            await port.stop()
        if self.app.request_log is not None:
            await self.app.request_log.close()
        await self.app.close()


async def serve(
    engine: AsyncEngine,
    config: ServerConfig | None = None,
    *,
    tracing: Tracing | None = None,
    announce: Callable[[str], None] = log.info,
    load: Callable[[str], Awaitable[None]] | None = None,
) -> bool:
    """Serve until SIGTERM or SIGINT, then drain, and close the engine.

    Returns whether answers were broken off at the end.

    Call it on the main thread's loop, because of the signals. The port listens before the model is
    loaded. A process that ends behind it does so with :func:`leave`.

    Args:
        engine: Not started yet; started and closed here.
        config: Where it listens, who may use it, how much at once.
        tracing: Makes spans of requests; closed here.
        announce: Called with lines for the user: where the server listens, when it is ready, when
            it drains.
        load: Starts the engine in place of ``engine.start()``; called with the URL.

    Raises:
        ConfigError: The port cannot be had, the key file not be read, or the store not be opened.
        ModelLoadError: The model cannot be loaded.
        EngineDeadError: The HTTP server has ended by itself, or the engine for good.
    """
    config = config or ServerConfig()
    source = AccessSource(config)
    door = Door(source.rules())
    server = _server_of(engine, config, door, tracing)

    def reload() -> None:
        door.apply(source.rules())
        server.renew_certificate()

    async with signals() as (stop, hurry), reloading(config.reloaded_files, reload):
        await server.start()
        announce(f"listening on {server.url}, loading {engine.model_name}")
        loading = engine.start() if load is None else load(server.url)
        try:
            await _run(engine, server, asyncio.ensure_future(loading), stop, announce)
        finally:
            await stop_server(server, hurry)
            await engine.close()
            remove_path(config)
            if tracing is not None:
                await asyncio.to_thread(tracing.close)
    return server.broken_off > 0


def _server_of(
    engine: AsyncEngine, config: ServerConfig, door: Door, tracing: Tracing | None
) -> HttpServer:
    """The server that a configuration asks for.

    Raises:
        ConfigError: The port cannot be had, or the store not be opened.
    """
    limits = Limits.of(config)
    certificate = Certificate.of(config)
    [listener] = listeners(config, limits.backlog)
    metrics = metrics_listeners(config, limits.backlog)
    return HttpServer(
        engine,
        host=config.host,
        limits=limits,
        tracing=tracing,
        door=door,
        request_log=RequestLog(config.log_level, config.log_format, prompts=config.log_prompts),
        listener=listener,
        metrics_listener=None if metrics is None else metrics[0],
        certificate=certificate,
        store=Store(StoreLimits.of(config)),
    )


async def _run(
    engine: AsyncEngine,
    server: HttpServer,
    loading: asyncio.Future[Any],
    stop: asyncio.Event,
    announce: Callable[[str], None],
) -> None:
    """Wait until the model is loaded, and then for ``stop``.

    Raises:
        ModelLoadError: The model cannot be loaded.
        EngineDeadError: The HTTP server has ended by itself, or the engine for good.
    """
    stopping: asyncio.Task[Any] = asyncio.create_task(stop.wait())
    ended: asyncio.Task[Any] = asyncio.create_task(server.wait_closed())
    died: asyncio.Task[Any] = asyncio.create_task(engine.dead.wait())
    try:
        await asyncio.wait({loading, stopping, ended}, return_when=asyncio.FIRST_COMPLETED)
        if loading.done():
            loading.result()  # raises what made loading fail
            announce(f"ready: {engine.model_name} at {server.url}/v1")
            notify_ready(engine.model_name, server.url)
            await asyncio.wait({stopping, ended, died}, return_when=asyncio.FIRST_COMPLETED)
        if ended.done():
            raise EngineDeadError("the HTTP server ended unexpectedly")
        if died.done():
            raise EngineDeadError(f"the engine has died for good: {engine.failure}")
        if active := server.app.active:
            announce(f"draining {active} requests; send the signal again to stop at once")
    finally:
        tasks = (stopping, ended, loading, died)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def leave(*, broken_off: bool = False) -> NoReturn:
    """End the process without taking the interpreter down. Everything is closed.

    The status is 0, or :data:`BROKEN_OFF` if answers were.

    Threads of granian may still be dropping Python objects; one that asks for the interpreter
    during its shutdown aborts the process.
    """
    logs.finish()
    os._exit(BROKEN_OFF if broken_off else 0)


async def stop_server(server: HttpServer, hurry: asyncio.Event) -> None:
    """Drain and close, or close at once when ``hurry`` is set."""
    draining = asyncio.create_task(server.stop())
    hurrying = asyncio.create_task(hurry.wait())
    await asyncio.wait({draining, hurrying}, return_when=asyncio.FIRST_COMPLETED)
    if not draining.done():
        draining.cancel()
        await asyncio.gather(draining, return_exceptions=True)
        await server.stop(0)
    hurrying.cancel()


@contextlib.asynccontextmanager
async def signals() -> AsyncIterator[tuple[asyncio.Event, asyncio.Event]]:
    """Events that the first and the second SIGTERM or SIGINT set; the old handlers come back.

    SIGHUP counts too, which a closed terminal sends, unless it is ignored, as nohup does it.
    """
    loop = asyncio.get_running_loop()
    stop, hurry = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (hurry if stop.is_set() else stop).set()

    kinds = [signal.SIGTERM, signal.SIGINT]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        kinds.append(signal.SIGHUP)
    before = {kind: signal.getsignal(kind) for kind in kinds}
    for kind in kinds:
        loop.add_signal_handler(kind, on_signal)
    try:
        yield stop, hurry
    finally:
        for kind in kinds:
            loop.remove_signal_handler(kind)
            signal.signal(kind, before[kind])

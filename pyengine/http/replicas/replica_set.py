"""``serve --replicas``: engines with their servers, the router before them, and their supervisor.

::

                 supervisor: starts the others, and starts again what dies
                    │             │                │              /metrics of all
              ┌─────▼────┐  ┌─────▼────────┐  ┌────▼─────────┐
  clients ──► │ router   │─►│ pyengine     │  │ pyengine     │
  (one port)  │ smg      │  │ serve        │  │ serve        │
              └──────────┘  │ replica 0    │  │ replica 1    │
                   └───────►│ its GPU,     │  │ its GPU,     │
                            │ or its cores │  │ or its cores │
                            └──────────────┘  └──────────────┘

A replica is ``pyengine serve`` with the same options on a free port of this machine. It says when
it is ready, and the supervisor tells the router. When it dies, the router forgets it and another
takes its place; meanwhile its requests go to the others.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from pyengine.errors import EngineDeadError
from pyengine.http.access.door import Door
from pyengine.http.replicas.operations import Operations, Scraped, gathered
from pyengine.http.replicas.program import Program
from pyengine.http.replicas.router import Router, exchange
from pyengine.http.replicas.shares import Share
from pyengine.http.serving.granian_server import GranianServer
from pyengine.http.serving.sockets import listen, reachable, url_of
from pyengine.logs import output
from pyengine.placement.children import EXIT_TIMEOUT_S
from pyengine.placement.restarts import MAX_DEATHS, RestartLimit
from pyengine.settings.server import ServerConfig

log = logging.getLogger("pyengine.replicas")

SCRAPERS = 64
"""Connections to the metrics at once."""


class Replica:
    """One of the replicas, through all its lives.

    Attributes:
        index: Its number.
        share: What it may use of the machine.
        program: Its process, while it lives.
        url: Where it serves, while it is ready.
        name: Its name at the router, while that knows it.
        restarts: How often it was started again.
    """

    def __init__(self, index: int, share: Share) -> None:
        self.index = index
        self.share = share
        self.program: Program | None = None
        self.url: str | None = None
        self.name: str | None = None
        self.restarts = 0
        self.first_ready = asyncio.Event()


class ReplicaSet:
    """Replicas and router. Everything is called on one loop.

    Attributes:
        url: The URL for clients.
        metrics_url: The URL of the metrics.
        replicas: The replicas.
        router: The router, in its present life.
    """

    router: Router

    def __init__(
        self,
        arguments: Sequence[str],
        model: str,
        shares: Sequence[Share],
        config: ServerConfig,
        *,
        metrics_port: int,
        door: Door,
        announce: Callable[[str], None] = log.info,
    ) -> None:
        """Take the ports; nothing is started yet.

        Args:
            arguments: The arguments of ``pyengine serve``, for every replica.
            model: The name that the model answers to.
            shares: What each replica may use.
            config: Where clients reach the router, and how long it drains.
            metrics_port: Port of the metrics; 0 takes a free one.
            door: Lets scrapes of the metrics in.
            announce: Called with lines for the user: which replica is ready.

        Raises:
            ConfigError: A port cannot be had.
        """
        self.model = model
        self.replicas = [Replica(index, share) for index, share in enumerate(shares)]
        self._arguments = [*arguments, "--replicas", "1", "--host", "127.0.0.1", "--port", "0"]
        self._config = config
        self._announce = announce
        self._operations = Operations(self.scrape, door)
        host = config.host
        listener = listen(host, metrics_port, self._operations.limits.backlog)
        self.metrics_url = f"{url_of(listener, host)}/metrics"
        self._standby = f"http://{reachable(host)}:{listener.getsockname()[1]}"
        self._server = GranianServer(self._operations, listener, SCRAPERS)
        with listen(host, config.port, 1) as taken:  # smg would only log that a port is in use
            self._address = host, int(taken.getsockname()[1])
        self.url = Router(*self._address, 0, 0).url
        self._stopping = False
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Start the router, which answers 503 from now on, and the replicas.

        Raises:
            EngineDeadError: The router does not start.
        """
        self._tasks.append(asyncio.create_task(self._server.serve()))
        await self._start_router()
        self._tasks.append(asyncio.create_task(self._keep_router()))
        self._tasks += [asyncio.create_task(self._keep(replica)) for replica in self.replicas]

    async def ready(self) -> None:
        """Wait until every replica has been ready once."""
        for replica in self.replicas:
            await replica.first_ready.wait()

    async def failed(self) -> None:
        """Wait until the router, all replicas, or one that was never ready are given up.

        Raises:
            EngineDeadError: Why.
        """
        server, router, *replicas = self._tasks
        left = set(replicas)
        while left and not server.done() and not router.done():
            await asyncio.wait({server, router, *left}, return_when=asyncio.FIRST_COMPLETED)
            left -= {task for task in left if task.done()}
            for replica, task in zip(self.replicas, replicas, strict=True):
                if task.done() and not replica.first_ready.is_set():
                    task.result()
        for task in (router, *replicas):
            if task.done():
                task.result()
        raise EngineDeadError("the endpoint of the metrics ended unexpectedly")

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Let the router drain, at once if ``hurry`` is set; then stop the replicas."""
        self._stopping = True
        hurrying = asyncio.create_task((hurry or asyncio.Event()).wait())
        programs = [each.program for each in self.replicas if each.program is not None]
        if hasattr(self, "router"):
            programs.insert(0, self.router.program)
        if programs:
            await self._end(programs[:1], hurrying)
            await self._end(programs[1:], hurrying)
        hurrying.cancel()
        self._server.stop()  # type: ignore[no-untyped-call]
        for task in self._tasks[1:]:
            task.cancel()
        await asyncio.gather(*self._tasks, hurrying, return_exceptions=True)

    async def _end(self, programs: Sequence[Program], hurrying: "asyncio.Task[bool]") -> None:
        """Stop programs, and kill those that take too long."""
        if not programs:
            return
        for program in programs:
            program.stop()
        ended = asyncio.gather(*(program.ended() for program in programs))
        limit = asyncio.ensure_future(asyncio.sleep(self._config.drain_seconds + EXIT_TIMEOUT_S))
        waiting: list[asyncio.Future[Any]] = [ended, hurrying, limit]
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        limit.cancel()
        for program in programs:
            program.kill()
        await ended

    async def scrape(self, query: str, credentials: dict[str, str]) -> Scraped:
        """The metrics of all replicas that let these headers in, and of the router.

        ``query`` is that of the scrape's path, and goes to the replicas.
        """

        def of(url: str | None) -> Callable[[], Awaitable[str]]:
            return lambda: _metrics_of(url, query, credentials)

        texts = await gathered({each.index: of(each.url) for each in self.replicas})
        router = await gathered({0: self.router.metrics})
        restarts = {each.index: each.restarts for each in self.replicas}
        return Scraped(texts, restarts, router[0] or "")

    async def _start_router(self) -> None:
        drain, origins = self._config.drain_seconds, self._config.allow_origin
        self.router = Router(*self._address, free_port(), drain, origins)
        await self.router.start()
        self._operations.registering = True
        with contextlib.suppress(OSError):
            await self.router.add(self._standby, self.model, failure_threshold=1)
        self._operations.registering = False
        for replica in self.replicas:
            await self._register(replica)

    async def _keep_router(self) -> None:
        """Start the router again whenever it ends; raises when it ends too often."""
        restarts = RestartLimit()
        while True:
            status = await self.router.program.ended()
            if self._stopping:
                return
            log.error("the router exited with status %d; starting another", status)
            if not await restarts.allows_another():
                raise EngineDeadError(f"the router died more than {MAX_DEATHS} times in a minute")
            await self._start_router()
            self._announce("the router runs again")

    async def _register(self, replica: Replica) -> None:
        """Tell the router of a replica, if it is ready; a router that died is told later."""
        if replica.url is not None:
            with contextlib.suppress(OSError):
                replica.name = await self.router.add(replica.url, self.model)
                self._operations.ready = True

    async def _keep(self, replica: Replica) -> None:
        """Keep a replica alive; raises when it dies too often, or before it was ever ready."""
        restarts = RestartLimit()
        while not self._stopping:
            program = replica.program = await Program.start(
                "pyengine",
                ["serve", *self._arguments],
                partial(show_line, replica.index),
                quiet=True,
                environment=replica.share.environment,
                cores=replica.share.cores,
            )
            replica.url = await program.ready()
            await self._register(replica)
            if replica.url is not None:
                self._announce(f"replica {replica.index}: ready, {replica.share}, {replica.url}")
                replica.first_ready.set()
            status = await program.ended()
            await self._forget(replica)
            if self._stopping:
                return
            what = f"replica {replica.index} exited with status {status}"
            if not replica.first_ready.is_set():
                raise EngineDeadError(f"{what} before it was ready; its last words are above")
            if not await restarts.allows_another():
                text = f"{what}, and more than {MAX_DEATHS} times within a minute"
                log.error("%s; it is given up", text)
                raise EngineDeadError(text)
            log.error("%s; starting another", what)
            replica.restarts += 1

    async def _forget(self, replica: Replica) -> None:
        """Tell the router that a replica is gone."""
        name, replica.name, replica.url, replica.program = replica.name, None, None, None
        self._operations.ready = any(each.url is not None for each in self.replicas)
        if name is not None:
            with contextlib.suppress(OSError):
                await self.router.remove(name)


def show_line(replica: int, line: str) -> None:
    """Write what a replica writes to stderr, with its number; an object of JSON stays one."""
    named = f'{{"replica":{replica},{line[1:]}' if line[:1] == "{" else f"replica {replica}: {line}"
    output(2).write(f"{named}\n")


async def _metrics_of(url: str | None, query: str, credentials: dict[str, str]) -> str:
    """Returns a replica's answer to a scrape.

    Raises:
        OSError: It is not ready, or does not answer, or not with metrics.
    """
    if url is None:
        raise ConnectionError("the replica is not ready")
    where = urlsplit(url)
    assert where.hostname is not None and where.port is not None  # noqa: PT018
    status, body = await asyncio.to_thread(
        exchange,
        (where.hostname, where.port),
        "GET",
        f"/metrics?{query}" if query else "/metrics",
        credentials,
        None,
    )
    if status != 200:
        raise OSError(f"{url}/metrics: status {status}")
    return body.decode()


def free_port() -> int:
    """A port on the loopback interface that nothing uses now."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        return int(taken.getsockname()[1])

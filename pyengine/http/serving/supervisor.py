"""``serve`` with several HTTP workers over one engine: the process that runs and restarts them.

::

                        supervisor: the listening sockets, the queues, the control lines
                         │        │                    │
              ┌──────────▼─┐    ┌─▼──────────┐       ┌─▼─────────────────────┐
  clients ──► │ worker 0   │    │ worker 1   │ ════► │ engine                │
  (one port)  │ HTTP app,  │    │ HTTP app,  │ ◄════ │ Scheduler, Detokenizer│
              │ Frontend 0 │    │ Frontend 1 │ rings │                       │
              └────────────┘    └────────────┘       └───────────────────────┘

Each worker has a listening socket of its own on the port, and the kernel spreads connections over
them. Sockets and queues are inherited by descriptor, so nothing is left in any file system. A
control line ends when the process at its other side dies. A worker that died is replaced; when the
supervisor dies, every worker ends.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from pyengine.async_engine import AsyncEngine
from pyengine.errors import EngineDeadError
from pyengine.http.access.rates import Rates
from pyengine.http.access.source import AccessSource
from pyengine.http.limits import Limits
from pyengine.http.serving.commands import Commands
from pyengine.http.serving.granian_server import Certificate
from pyengine.http.serving.notify import notify_ready
from pyengine.http.serving.reload import reloading
from pyengine.http.serving.server import BROKEN_OFF, signals
from pyengine.http.serving.sockets import listeners, metrics_listeners, remove_path, url_of
from pyengine.http.serving.stand_in import stand_in
from pyengine.http.serving.trials import Trials
from pyengine.http.serving.worker_messages import (
    Access,
    Command,
    Draining,
    FromWorker,
    NewCertificate,
    Ping,
    Selected,
    Serving,
    Stop,
    ToWorker,
    Work,
    decode_from_worker,
)
from pyengine.http.store.shared import SharedStore
from pyengine.http.store.store import StoreLimits
from pyengine.placement import Watcher
from pyengine.placement.child import Child
from pyengine.placement.children import EXIT_TIMEOUT_S, Failed
from pyengine.placement.engine_messages import Asleep, Cleared, Down
from pyengine.placement.process import ProcessPlacement
from pyengine.placement.restarts import MAX_DEATHS, RestartLimit
from pyengine.queues import EngineInfo
from pyengine.settings.config import EngineConfig
from pyengine.settings.server import ServerConfig

log = logging.getLogger("pyengine.http")

HANG_S = 30.0
"""A worker whose loop has not run for so long is killed, and another takes its place."""

PING_S = 1.0
"""How often it is looked at; while it does not run, the others get its connections."""

REQUESTS_OF_A_LIFE = 1 << 32
"""A worker's request numbers begin at this times the number of its predecessors."""


class Supervisor:
    """Workers and engine. Everything is called on one loop.

    Attributes:
        engine: The engine, with a frontend of the supervisor's own.
        url: The URL that the workers serve.
        workers: The workers' processes, by index, as far as they live.
        broken_off: Whether a worker ended, or was killed, before all its answers were whole.
    """

    def __init__(
        self,
        config: EngineConfig,
        server: ServerConfig,
        *,
        announce: Callable[[str], None] = log.info,
        placement: ProcessPlacement | None = None,
    ) -> None:
        """Listen; nothing else is started yet.

        Args:
            config: The configuration of the engine.
            server: The configuration of the endpoint.
            announce: Called with lines for the user.
            placement: Of the engine, with a frontend for each worker and the supervisor; None
                makes one.

        Raises:
            ConfigError: The port cannot be had, the key file not be read, or the store not be
                opened.
        """
        self.config = server
        self.limits = Limits.of(server)
        self._access = AccessSource(server)
        self._rules = self._access.rules()
        self._rates = Rates.make()
        self._store = SharedStore(StoreLimits.of(server))
        self.placement = placement or ProcessPlacement(frontends=server.workers + 1)
        self.placement.watchers.append(Watcher(self._down, self._up, lambda: None, self._died))
        self.engine = AsyncEngine(config=config, placement=self.placement)
        self.workers: dict[int, Child] = {}
        self._certificate = Certificate.of(server)
        self._listeners = listeners(server, self.limits.backlog)
        self._metrics_listeners = metrics_listeners(server, self.limits.backlog)
        scheme = "http" if self._certificate is None else "https"
        self.url = url_of(self._listeners[0], server.host, scheme)
        self._announce = announce
        self._trials = Trials(self._tell_one)
        self._commands = Commands(
            self.placement, self._trials, lambda: self.workers, self._tell_one
        )
        self._failed: Failed | None = None
        self._asleep: Asleep | None = None
        self._stopping = False
        self.broken_off = False
        self._heard_at: dict[int, float] = {}
        self._serving = [asyncio.Event() for _ in range(server.workers)]
        self._keepers: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Start the workers. Until the engine is ready, they answer requests with 503."""
        self._keepers = [
            asyncio.create_task(self._keep(index)) for index in range(len(self._serving))
        ]

    async def ready(self) -> None:
        """Announce the started engine to the workers, and wait until all of them serve."""
        if self._trials.info is None:
            self._up(self.engine.info)
        await self._trials.over.wait()
        for serving in self._serving:
            await serving.wait()

    async def failed(self) -> None:
        """Return when the workers die too often. Until then, wait."""
        await asyncio.wait(self._keepers, return_when=asyncio.FIRST_COMPLETED)

    async def stop(self, hurry: asyncio.Event | None = None) -> None:
        """Let the workers drain, at once if ``hurry`` is set, then stop the engine. Idempotent."""
        self._stopping = True
        self._commands.close()
        self._tell(Stop())
        hurrying = asyncio.create_task((hurry or asyncio.Event()).wait())
        ended = asyncio.ensure_future(self._ended())
        left = self.limits.drain_seconds + EXIT_TIMEOUT_S
        await asyncio.wait({ended, hurrying}, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done():
            self._tell(Stop())
            await asyncio.wait({ended}, timeout=EXIT_TIMEOUT_S)
        for child in self.workers.values():
            child.process.kill()
        hurrying.cancel()
        await asyncio.gather(ended, hurrying, return_exceptions=True)
        for listener in (*self._listeners, *(self._metrics_listeners or ())):
            listener.close()
        remove_path(self.config)
        self._store.close()
        await self.engine.close()

    async def _ended(self) -> None:
        await asyncio.gather(*self._keepers, return_exceptions=True)

    async def _keep(self, index: int) -> None:
        """Keep worker ``index`` alive; ends when it dies too often, or when all stop."""
        restarts, lives = RestartLimit(), 0
        while not self._stopping:
            child = await self._start_worker(index, lives)
            watch = None
            while line := await child.receive():
                self._heard_at[index] = time.monotonic()
                if watch is None:  # its start is over
                    watch = asyncio.create_task(self._watch(index, child))
                try:
                    self._heard(index, decode_from_worker(line))
                except msgspec.MsgspecError as error:
                    log.error("HTTP worker %d says %.200r: %s", index, line, error)
            if watch is not None:
                watch.cancel()
            del self.workers[index]
            self._trials.left(index)
            self._commands.left(index)
            lives += 1
            # Before its successor's first request: end what the dead worker left running.
            self.engine.connection.abort_frontend(index, lives * REQUESTS_OF_A_LIFE)
            status = await child.ended()
            if self._stopping:
                self.broken_off |= status == BROKEN_OFF or status < 0
                return
            log.error("HTTP worker %d exited with status %d; starting another", index, status)
            if not await restarts.allows_another():
                text = f"HTTP worker {index} died more than {MAX_DEATHS} times within a minute"
                raise EngineDeadError(text)

    async def _watch(self, index: int, child: Child) -> None:
        """Stand in for worker ``index`` while its loop does not run; kill it after long."""
        standing: asyncio.Task[None] | None = None
        try:
            while (silent := time.monotonic() - self._heard_at[index]) < HANG_S:
                if silent < 2 * PING_S and standing is not None:
                    standing.cancel()
                    standing = None
                elif silent >= 2 * PING_S and standing is None and self._others_run(index):
                    standing = asyncio.create_task(stand_in(self._listeners[index]))
                child.send(Ping())
                await asyncio.sleep(min(PING_S, HANG_S - silent))
        finally:
            if standing is not None:
                standing.cancel()
        log.error("HTTP worker %d has not run for %g seconds; it is killed", index, HANG_S)
        child.process.kill()

    def _others_run(self, index: int) -> bool:
        """Whether another worker on the port, not on a path, has been heard of lately."""
        lately = time.monotonic() - 2 * PING_S
        heard = (at > lately for other, at in self._heard_at.items() if other != index)
        return self.config.uds is None and any(heard)

    def _heard(self, index: int, message: FromWorker) -> None:
        """Act on a message of worker ``index``."""
        match message:
            case Serving():
                self._serving[index].set()
            case Cleared():
                self._trials.cleared(index)
            case Command() as command:
                self._commands.take(index, command)
            case Selected() as selected:
                self._commands.selected(index, selected)
            case Draining(active) if active:
                self._announce(
                    f"worker {index}: draining {active} requests; send the signal again to "
                    "stop at once"
                )

    async def _start_worker(self, index: int, lives: int) -> Child:
        scheduler = self.placement.queues.scheduler.descriptors()
        inbox = self.placement.queues.frontends[index].descriptors()
        listener = self._listeners[index].fileno()
        metrics = [one.fileno() for one in (self._metrics_listeners or ())[index : index + 1]]
        recorder = self.placement.queues.recorder.descriptor()
        heartbeat = self.placement.queues.heartbeat.descriptor()
        child = await Child.start(
            "pyengine.http.serving.worker_main",
            [listener, *metrics, recorder, heartbeat, self._rates.descriptor, *scheduler, *inbox],
        )
        child.send(
            Work(
                config=self.engine.config,
                listener=listener,
                metrics_listener=metrics[0] if metrics else None,
                certificate=self._certificate,
                scheduler=scheduler,
                inbox=inbox,
                recorder=recorder,
                heartbeat=heartbeat,
                index=index,
                engine_runs=self._trials.info is not None or self._asleep is not None,
                first_request=lives * REQUESTS_OF_A_LIFE,
                limits=self.limits,
                rules=self._rules,
                rates=self._rates.descriptor,
                log_level=self.config.log_level,
                log_format=self.config.log_format,
                log_prompts=self.config.log_prompts,
                otlp_endpoint=self.config.otlp_endpoint,
                store=self._store.limits,
            )
        )
        self.workers[index] = child
        if (state := self._failed or self._asleep) is not None:
            child.send(state)
        self._trials.joined(index)
        if self._stopping:
            child.send(Stop())
        return child

    def reload(self) -> None:
        """Read the key file and the certificate again, and tell the workers.

        Raises:
            ConfigError: One cannot be read; it stays as it was.
        """
        self._rules = self._access.rules()
        self._tell(Access(self._rules))
        if self._certificate is not None:
            self._certificate.context()
            self._tell(NewCertificate())

    def _up(self, info: EngineInfo) -> None:
        self._asleep = None
        self._trials.up(info, self.workers)

    def _down(self, asleep: bool) -> None:
        self._trials.down()
        self._asleep = Asleep(self.engine.info) if asleep else None
        self._tell(self._asleep or Down())

    def _died(self, error: BaseException) -> None:
        self._trials.down()
        self._failed = Failed.of(error)
        self._tell(self._failed)

    def _tell_one(self, worker: int, message: ToWorker) -> None:
        if (child := self.workers.get(worker)) is not None:
            child.send(message)

    def _tell(self, message: ToWorker) -> None:
        for child in self.workers.values():
            child.send(message)


async def serve_workers(
    supervisor: Supervisor, load: Callable[[], Awaitable[None]], announce: Callable[[str], None]
) -> bool:
    """Serve until SIGTERM or SIGINT, then drain, and stop everything; a second one hurries.

    Returns whether answers were broken off at the end.

    Args:
        supervisor: Not started yet.
        load: Starts its engine.
        announce: Called with lines for the user: where it listens, when it is ready.

    Raises:
        ModelLoadError: The model cannot be loaded.
        EngineDeadError: A worker died too often, or the engine has died for good.
    """
    engine, config = supervisor.engine, supervisor.config
    reload = reloading(config.reloaded_files, supervisor.reload)
    async with signals() as (stop, hurry), reload:
        supervisor.start()
        announce(f"listening on {supervisor.url}, loading {engine.model_name}")

        async def prepare() -> None:
            await load()
            await supervisor.ready()
            announce(f"ready: {engine.model_name} at {supervisor.url}/v1")
            notify_ready(engine.model_name, supervisor.url)

        loading = asyncio.ensure_future(prepare())
        stopping = asyncio.create_task(stop.wait())
        failed = asyncio.create_task(supervisor.failed())
        died = asyncio.create_task(engine.dead.wait())
        try:
            await asyncio.wait({loading, stopping, failed}, return_when=asyncio.FIRST_COMPLETED)
            if loading.done():
                loading.result()  # raises what made loading fail
                await asyncio.wait({stopping, failed, died}, return_when=asyncio.FIRST_COMPLETED)
            if failed.done():
                raise EngineDeadError("an HTTP worker died too often; the log says why")
            if died.done():
                raise EngineDeadError(f"the engine has died for good: {engine.failure}")
        finally:
            tasks = (loading, stopping, failed, died)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await supervisor.stop(hurry)
    return supervisor.broken_off

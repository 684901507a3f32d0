"""An event loop's connection to an engine: start, restarts after a death, end."""

import asyncio
import os
from collections.abc import Awaitable, Callable

from pyengine._core import Timeline
from pyengine.actors.actor import ActorRef
from pyengine.errors import EngineDeadError, NotReadyError, PyengineError, release_frames
from pyengine.messages import RequestKey, encode_abort_frontend
from pyengine.model.progress import Progress
from pyengine.placement import Placement, Watcher
from pyengine.queues import EngineInfo
from pyengine.request.frontend import Frontend
from pyengine.settings.config import EngineConfig


class Connection:
    """A Frontend and the engine behind it. Belongs to the loop that starts it.

    ::

        new ──► starting ──► ready ──► closed
                   │           ├──► down, or asleep ──► up: ready again, every request goes on
                   └► failure  └──► dead: every open request ends with an error

    Attributes:
        config: The configuration of the engine.
        placement: Where the engine runs.
        timeline: The spans of this loop.
        frontend: Sends requests and reads what comes; None before the engine has started.
        ready: Whether requests are taken.
        failure: The error that made the start fail, or killed the engine.
        dead: Set when the engine has died for good.
        asleep: Whether the engine was ended until :meth:`wake_up`; requests wait.
    """

    def __init__(self, config: EngineConfig, placement: Placement, timeline: Timeline) -> None:
        self.placement = placement
        self.frontend: Frontend | None = None
        self.ready = False
        self.failure: BaseException | None = None
        self.dead = asyncio.Event()
        self.config = config
        self.timeline = timeline
        self._heartbeat = placement.frontend_slot().heartbeat
        self._info: EngineInfo | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._process = os.getpid()
        self._loop: asyncio.AbstractEventLoop | None = None
        self.asleep = False
        self._down = False

    async def start(
        self,
        read: Callable[[Progress | None], Awaitable[EngineConfig]],
        progress: Progress | None = None,
    ) -> None:
        """Load the model on a thread and begin to take requests. A second call waits for the first.

        Args:
            read: Reads the model's folder before the engine is started, and returns the
                configuration to start it with; its failure is the start's.
            progress: As :meth:`pyengine.AsyncEngine.start` takes it.

        Raises:
            ModelLoadError: The model cannot be had or read.
            PyengineError: No asyncio loop runs here, or a parent process has started the engine.
        """
        if self._closed:
            raise EngineDeadError("the engine was closed; make a new one")
        self._check_process()
        if self._starting is None:
            self._loop = asyncio._get_running_loop()
            if self._loop is None:
                raise PyengineError(
                    "the engine needs a running asyncio loop, and there is none here: start it "
                    "with asyncio.run(...), or with anyio.run(..., backend='asyncio')"
                )
            self._starting = asyncio.create_task(self._start(read, progress))
        await asyncio.shield(self._starting)

    async def _start(
        self,
        read: Callable[[Progress | None], Awaitable[EngineConfig]],
        progress: Progress | None,
    ) -> None:
        watcher = Watcher(self._on_down, self._on_up, self._on_go_on, self._on_death)
        try:
            self.config = await read(progress)
            self._info = await self.placement.start(self.config, progress, watcher)
        except BaseException as error:
            # The error is kept. The locals of the frames it passed hold weights and caches.
            release_frames(error)
            self.failure = error
            raise
        slot = self.placement.frontend_slot()
        self.frontend = Frontend(
            slot.index,
            ActorRef(f"frontend-{slot.index}", slot.inbox),
            ActorRef("scheduler", slot.scheduler),
            self.timeline,
            first_request=slot.first_request,
            max_held=self.config.max_waiting,
        )
        self.frontend.open()
        if self.asleep:
            self.frontend.engine_sleeps()
        elif self._down:
            self.frontend.engine_died()
        self.ready = True

    @property
    def forked(self) -> bool:
        """Whether this process was forked from the one that made this, before any start."""
        return os.getpid() != self._process and self._starting is None

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise PyengineError(
                f"the engine belongs to process {self._process}, from which this one was forked: "
                "start it where it is used, such as in the application's lifespan"
            )

    def connected(self) -> Frontend:
        """The frontend of an engine that takes requests; for code on the loop that started it.

        Raises:
            PyengineError: The caller is in a forked process, or on another loop.
            NotReadyError: The model is not loaded yet.
            EngineDeadError: The engine could not be started, has died or was closed.
        """
        self._check_process()
        if self._loop is not None and asyncio._get_running_loop() not in (None, self._loop):
            raise PyengineError(
                "the engine belongs to the event loop that started it, and this is another: use "
                "one engine a loop, or pyengine.Engine, which any thread may call"
            )
        return self._open()

    def _open(self) -> Frontend:
        frontend = self.frontend
        if self._closed:
            raise EngineDeadError("the engine was closed")
        if frontend is None:
            if self.failure is not None:
                raise EngineDeadError(f"the model could not be loaded: {self.failure}")
            if self._starting is None:
                raise NotReadyError(
                    "the engine was not started: `async with` it, or await engine.start()"
                )
            raise NotReadyError("the model is still being loaded; try again in a moment")
        if frontend.failure is not None:
            raise frontend.failure
        return frontend

    @property
    def info(self) -> EngineInfo:
        """Context length, vocabulary size and KV blocks.

        Raises:
            NotReadyError: The model is still being loaded.
        """
        self._open()
        assert self._info is not None
        return self._info

    @property
    def waits_for(self) -> str | None:
        """What requests wait for before the engine works on them; None while it does.

        Requests that are sent meanwhile go on once it does.
        """
        if self.failure is not None:
            return "the engine has failed"
        if not self.ready:
            return "the model is being loaded"
        if self.asleep:
            return "the engine sleeps, until it is woken up"
        if self._down:
            return "the engine has died, and another is being started"
        trouble = self._heartbeat.trouble(self.config.step_timeout_s)
        return None if trouble is None else f"the engine does not respond: {trouble}"

    @property
    def step_s(self) -> float:
        """Seconds since the engine's step under way began; 0 if there is none."""
        return self._heartbeat.step_s

    @property
    def restarts(self) -> int:
        """Engines that took the place of one that died or hung."""
        return self._heartbeat.restarts

    def abort_frontend(self, index: int, below: int) -> None:
        """End the requests of frontend ``index``, whose process died, with numbers under ``below``.

        For the process that started the engine and for the frontends' processes; see
        :mod:`pyengine.http.serving.supervisor`.
        """
        if self.frontend is not None:
            self.frontend.send(encode_abort_frontend(RequestKey(index, below)))

    async def sleep(self) -> None:
        """See :meth:`pyengine.AsyncEngine.sleep`."""
        self.connected()
        await self.placement.sleep()

    async def wake_up(self) -> None:
        """See :meth:`pyengine.AsyncEngine.wake_up`."""
        self.connected()
        await self.placement.wake_up()

    async def close(self) -> None:
        """End every request, stop the engine and free its memory. Idempotent."""
        if self._closed and self._loop is not asyncio.get_running_loop():
            return  # with its own loop
        self._closed = True
        self.ready = False
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.frontend is not None:
            self.frontend.fail(EngineDeadError("the engine was closed"))
        await self.placement.close()
        if self.frontend is not None:
            self.frontend.close()

    def _on_down(self, asleep: bool) -> None:
        """The engine died and is being restarted, or sleeps: its requests go on afterwards."""
        self._down, self.asleep = True, asleep
        if self.frontend is not None and asleep:
            self.frontend.engine_sleeps()
        elif self.frontend is not None:
            self.frontend.engine_died()

    def _on_up(self, info: EngineInfo) -> None:
        """The new engine runs: requests that may have killed the old one are tried."""
        self._info = info
        if self.frontend is not None:
            self.frontend.engine_is_back(self.placement.cleared)
        else:
            self.placement.cleared()

    def _on_go_on(self) -> None:
        """All requests go on."""
        self._down = self.asleep = False
        if self.frontend is not None:
            self.frontend.go_on()

    def _on_death(self, error: BaseException) -> None:
        """The engine died for good: every open request ends with an error."""
        self.failure = error
        self.ready = False
        self.dead.set()
        if self.frontend is not None:
            self.frontend.fail(EngineDeadError(f"the engine died: {error}"))

"""A loop's connection to an engine: its start, its deaths, its end."""

import asyncio
from collections.abc import Awaitable, Callable

from pyengine._core import Timeline
from pyengine.actors.actor import ActorRef
from pyengine.engine import EngineInfo
from pyengine.errors import EngineDeadError, NotReadyError, release_frames
from pyengine.model.runner import Progress
from pyengine.placement import Placement, Watcher
from pyengine.request.frontend import Frontend
from pyengine.settings.config import EngineConfig


class Connection:
    """A Frontend and the engine behind it. Belongs to the loop that starts it.

    ::

        new ──► starting ──► ready ──► closed
                   │           ├──► down ──► up: ready again, every request goes on
                   └► failure  └──► dead: everyone who waits is answered

    Attributes:
        placement: Where the engine runs.
        frontend: Sends requests and reads what comes; None before the engine has started.
        ready: Whether requests are taken.
        failure: What made the start fail, or killed the engine.
        dead: Set when the engine has died for good.
    """

    def __init__(self, config: EngineConfig, placement: Placement, timeline: Timeline) -> None:
        self.placement = placement
        self.frontend: Frontend | None = None
        self.ready = False
        self.failure: BaseException | None = None
        self.dead = asyncio.Event()
        self._config = config
        self._timeline = timeline
        self._info: EngineInfo | None = None
        self._starting: asyncio.Task[None] | None = None
        self._closed = False
        self._down = False

    async def start(
        self, prepare: Callable[[], Awaitable[None]], progress: Progress | None
    ) -> None:
        """Start the engine and begin to take requests. A second call waits for the first.

        Args:
            prepare: What is done before; its failure is the start's.
            progress: Told (bytes loaded, bytes in all); called on the loading thread.

        Raises:
            PyengineError: As ``prepare`` and :meth:`Placement.start` raise it.
        """
        if self._closed:
            raise EngineDeadError("the engine was closed; make a new one")
        if self._starting is None:
            self._starting = asyncio.create_task(self._start(prepare, progress))
        await asyncio.shield(self._starting)

    async def _start(
        self, prepare: Callable[[], Awaitable[None]], progress: Progress | None
    ) -> None:
        watcher = Watcher(self._on_down, self._on_up, self._on_death)
        try:
            await prepare()
            self._info = await self.placement.start(self._config, progress, watcher)
        except BaseException as error:
            # It is kept, and with it would be weights and caches, as locals of those who failed.
            release_frames(error)
            self.failure = error
            raise
        slot = self.placement.frontend_slot()
        self.frontend = Frontend(
            slot.index,
            ActorRef(f"frontend-{slot.index}", slot.inbox),
            ActorRef("scheduler", slot.scheduler),
            self._timeline,
            first_request=slot.first_request,
            max_held=self._config.max_waiting,
        )
        self.frontend.open()
        if self._down:
            self.frontend.engine_died()
        self.ready = True

    def running(self) -> Frontend:
        """The frontend of an engine that takes requests.

        Raises:
            NotReadyError: The model is not loaded yet.
            EngineDeadError: The engine could not be started, has died or was closed.
        """
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
        """What the engine is; raises as :meth:`running` does."""
        self.running()
        assert self._info is not None
        return self._info

    def abort_frontend(self, index: int, below: int) -> None:
        """As :meth:`Frontend.abort_frontend`; nothing before the engine has started."""
        if self.frontend is not None:
            self.frontend.abort_frontend(index, below)

    async def close(self) -> None:
        """End every request and stop the engine. Idempotent."""
        self._closed = True
        self.ready = False
        if self._starting is not None:
            await asyncio.gather(self._starting, return_exceptions=True)
        if self.frontend is not None:
            self.frontend.fail(EngineDeadError("the engine was closed"))
        await self.placement.close()
        if self.frontend is not None:
            self.frontend.close()

    def _on_down(self) -> None:
        """The engine died and is started anew: what it had goes on afterwards."""
        self._down = True
        if self.frontend is not None:
            self.frontend.engine_died()

    def _on_up(self, info: EngineInfo) -> None:
        """The new engine runs."""
        self._down = False
        self._info = info
        if self.frontend is not None:
            self.frontend.engine_is_back()

    def _on_death(self, error: BaseException) -> None:
        """The engine died: everyone who waits is answered."""
        self.failure = error
        self.ready = False
        self.dead.set()
        if self.frontend is not None:
            self.frontend.fail(EngineDeadError(f"the engine died: {error}"))

"""The placement of an HTTP worker: the supervisor starts and watches the engine."""

import asyncio
from collections.abc import Awaitable, Callable

from pyengine.errors import PyengineError
from pyengine.model.progress import Progress
from pyengine.placement.children import Failed
from pyengine.placement.engine_messages import Asleep, Down, GoOn, Up
from pyengine.placement.protocol import FrontendSlot, Watcher
from pyengine.queues import EngineInfo
from pyengine.settings.config import EngineConfig


class AttachedPlacement:
    """Follows the engine by the supervisor's messages: see :meth:`receive`."""

    def __init__(
        self,
        slot: FrontendSlot,
        cleared: Callable[[], None],
        sleep: Callable[[bool], Awaitable[object]],
    ) -> None:
        """Start and stop nothing.

        Args:
            slot: The queues of this worker.
            cleared: Tells the supervisor that this worker has tried its requests.
            sleep: Asks the supervisor to let the engine sleep, or with False to wake it up.
        """
        self._frontend_slot = slot
        self._tell_cleared = cleared
        self._ask_to_sleep = sleep
        self._coming: EngineInfo | None = None  # it is up, and this worker has to wait its turn
        self._watcher: Watcher | None = None
        self._info: EngineInfo | None = None
        self._failure: PyengineError | None = None
        self._asleep = False
        self._changed = asyncio.Event()

    def frontend_slot(self) -> FrontendSlot:
        """The slot that the supervisor assigned."""
        return self._frontend_slot

    def renew_queues(self) -> None:
        """Nothing: a worker is a fresh process, and has the supervisor's queues."""

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Wait until the engine runs, or sleeps."""
        self._watcher = watcher
        if self._coming is not None:
            self.cleared()
        if self._asleep:
            watcher.down(True)
        while self._info is None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        return self._info

    def cleared(self) -> None:
        """Tell the supervisor."""
        self._tell_cleared()

    async def sleep(self) -> None:
        """Ask the supervisor."""
        await self._ask_to_sleep(True)

    async def wake_up(self) -> None:
        """Ask the supervisor."""
        await self._ask_to_sleep(False)

    async def close(self) -> None:
        """Nothing: the engine goes on for the other workers."""

    def receive(self, message: Up | GoOn | Down | Asleep | Failed) -> None:
        """Take the supervisor's message on the state of the engine."""
        watcher = self._watcher
        match message:
            case Up(info):
                self._info, self._coming, self._asleep = None, info, False
                if watcher is not None:
                    watcher.up(info)
            case GoOn():
                self._info = self._coming
                if watcher is not None:
                    watcher.go_on()
            case Down():
                self._info = self._coming = None
                if watcher is not None:
                    watcher.down(False)
            case Asleep(info):
                self._info, self._coming, self._asleep = info, None, True
                if watcher is not None:
                    watcher.down(True)
            case Failed():
                self._info = self._coming = None
                self._failure = message.error()
                if watcher is not None:
                    watcher.died(self._failure)
        self._changed.set()

"""The placement of an HTTP worker: the supervisor starts and watches the engine."""

import asyncio

from pyengine.engine import EngineInfo
from pyengine.errors import PyengineError
from pyengine.model.runner import Progress
from pyengine.placement.children import Failed
from pyengine.placement.engine_messages import Down, Up
from pyengine.placement.protocol import FrontendSlot, Watcher
from pyengine.settings.config import EngineConfig


class AttachedPlacement:
    """Follows the engine by the supervisor's messages: see :meth:`receive`."""

    def __init__(self, slot: FrontendSlot) -> None:
        self._frontend_slot = slot
        self._watcher: Watcher | None = None
        self._info: EngineInfo | None = None
        self._failure: PyengineError | None = None
        self._changed = asyncio.Event()

    def frontend_slot(self) -> FrontendSlot:
        """The slot that the supervisor assigned."""
        return self._frontend_slot

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Wait until the engine runs."""
        while self._info is None:
            if self._failure is not None:
                raise self._failure
            self._changed.clear()
            await self._changed.wait()
        self._watcher = watcher
        return self._info

    async def close(self) -> None:
        """Nothing: the engine goes on for the other workers."""

    def receive(self, message: Up | Down | Failed) -> None:
        """Take the supervisor's message on the state of the engine."""
        match message:
            case Up(info):
                self._info = info
                if self._watcher is not None:
                    self._watcher.up(info)
            case Down():
                self._info = None
                if self._watcher is not None:
                    self._watcher.down()
            case Failed():
                self._info = None
                self._failure = message.error()
                if self._watcher is not None:
                    self._watcher.died(self._failure)
        self._changed.set()

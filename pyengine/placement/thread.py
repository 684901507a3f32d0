"""The engine on threads of this process: it needs no subprocess, signal handler or main guard."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyengine.errors import ConfigError
from pyengine.logits_processors import Call, LogitsProcessor
from pyengine.model.progress import Progress
from pyengine.placement.protocol import FrontendSlot, Watcher
from pyengine.queues import EngineInfo, Queues
from pyengine.settings.config import EngineConfig

if TYPE_CHECKING:
    from pyengine.engine import EngineActors


class ThreadPlacement:
    """Runs the actors in this process; they share the GIL with the service."""

    def __init__(self, processors: Sequence[LogitsProcessor | Call] = ()) -> None:
        """Gives the engine ``processors`` beside those that its configuration names."""
        self.processors = processors
        self.actors: EngineActors | None = None
        self.queues = Queues.make()

    def frontend_slot(self) -> FrontendSlot:
        """The slot of the only frontend."""
        return FrontendSlot.last(self.queues)

    def renew_queues(self) -> None:
        """Make queues anew, for a forked process."""
        self.queues = Queues.make()

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Load on a thread, then start the actors."""
        from pyengine.engine import EngineActors

        loop = asyncio.get_running_loop()
        actors = await asyncio.to_thread(
            EngineActors.load, config, self.queues, progress, self.processors
        )

        def report(error: BaseException) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(watcher.died, error)

        actors.start(report)
        self.actors = actors
        return actors.info

    def cleared(self) -> None:
        """Nothing: this engine is not restarted."""

    async def sleep(self) -> None:
        """Refuse: memory that was in use stays with the process."""
        raise ConfigError(
            "an engine on a thread of the service cannot sleep: its memory is free when the "
            "process ends; with 'placement' of process it can",
            param="placement",
        )

    async def wake_up(self) -> None:
        """Nothing: it does not sleep."""

    async def close(self) -> None:
        """Stop the actors, off the loop."""
        actors, self.actors = self.actors, None
        if actors is not None:
            await asyncio.to_thread(actors.close)

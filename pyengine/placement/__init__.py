"""Where the engine's actors run: on threads of this process, or in a process of their own.

The queues are the same; a placement only starts, watches and stops what is behind them.
"""

from collections.abc import Callable
from typing import Literal, Protocol

from pyengine.config import EngineConfig
from pyengine.engine import EngineInfo, Progress, Queues

PlacementName = Literal["thread", "process"]

DeathHandler = Callable[[BaseException], None]
"""Called once on the asyncio loop that started the engine, when the engine died unasked."""


class Placement(Protocol):
    """Starts, watches and stops an engine. Belongs to one asyncio loop."""

    async def start(
        self, config: EngineConfig, queues: Queues, progress: Progress | None, died: DeathHandler
    ) -> EngineInfo:
        """Load the model and start the actors behind ``queues``.

        Raises:
            PyengineError: As :meth:`EngineActors.load` raises it.
        """

    async def close(self) -> None:
        """Stop the actors and give everything back. Idempotent."""


def placed(name: PlacementName) -> Placement:
    """The placement of that name."""
    if name == "thread":
        from pyengine.placement.thread import ThreadPlacement

        return ThreadPlacement()
    from pyengine.placement.process import ProcessPlacement

    return ProcessPlacement()

"""What a placement is, where it slots a frontend, and whom it tells of an engine's deaths."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from pyengine._core import Mailbox, Recorder
from pyengine.engine import EngineInfo, Queues
from pyengine.model.runner import Progress
from pyengine.settings.config import EngineConfig


@dataclass(frozen=True)
class FrontendSlot:
    """A frontend's place at the queues.

    Attributes:
        scheduler: The scheduler's mailbox.
        inbox: The frontend's.
        recorder: Of what every part of the engine does.
        index: Which of the frontends it is.
        first_request: Where the numbers of its requests begin.
    """

    scheduler: Mailbox
    inbox: Mailbox
    recorder: Recorder
    index: int = 0
    first_request: int = 0

    @classmethod
    def last(cls, queues: Queues) -> Self:
        """The last of the frontends of ``queues``."""
        return cls(
            queues.scheduler, queues.frontends[-1], queues.recorder, len(queues.frontends) - 1
        )


@dataclass(frozen=True)
class Watcher:
    """Who is told what becomes of an engine; called on the loop that started it.

    Attributes:
        down: The engine died; another is being started on the same queues.
        up: The other one runs.
        died: There will be no other.
    """

    down: Callable[[], None]
    up: Callable[[EngineInfo], None]
    died: Callable[[BaseException], None]


class Placement(Protocol):
    """Starts, watches and stops an engine. Belongs to one asyncio loop."""

    def frontend_slot(self) -> FrontendSlot:
        """Where the frontend that starts the engine sits; the same at each call."""

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Load the model and start the actors.

        Raises:
            PyengineError: As :meth:`EngineActors.load` raises it.
        """

    async def close(self) -> None:
        """Stop the actors and give everything back. Idempotent."""

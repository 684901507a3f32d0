"""The interface of placements: a frontend's slot at the queues, and the engine's watchers."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, Self

from pyengine._core import Mailbox, Recorder
from pyengine.actors.heartbeat import Heartbeat
from pyengine.model.progress import Progress
from pyengine.queues import EngineInfo, Queues
from pyengine.settings.config import EngineConfig


@dataclass(frozen=True)
class FrontendSlot:
    """The queues and numbers that one frontend uses.

    Attributes:
        scheduler: The scheduler's mailbox, to which requests are sent.
        inbox: The frontend's own mailbox, to which its answers come.
        recorder: The recorder of the spans of every part of the engine.
        heartbeat: The engine's signs of life.
        index: The frontend's number.
        first_request: The number of its first request.
    """

    scheduler: Mailbox
    inbox: Mailbox
    recorder: Recorder
    heartbeat: Heartbeat
    index: int = 0
    first_request: int = 0

    @classmethod
    def last(cls, queues: Queues) -> Self:
        """The slot of the last frontend of ``queues``."""
        return cls(
            queues.scheduler,
            queues.frontends[-1],
            queues.recorder,
            queues.heartbeat,
            len(queues.frontends) - 1,
        )


@dataclass(frozen=True)
class Watcher:
    """Callbacks on the state of an engine; called on the loop that started it.

    Attributes:
        down: The engine died, and another is being started on the same queues; or, where it is
            called with True, it sleeps.
        up: The other engine runs. Requests that may have killed the first one are tried one at a
            time, then :meth:`Placement.cleared` is called.
        go_on: No such request is left at any frontend; all requests go on.
        died: The engine died, and is not restarted.
    """

    down: Callable[[bool], None]
    up: Callable[[EngineInfo], None]
    go_on: Callable[[], None]
    died: Callable[[BaseException], None]


class Placement(Protocol):
    """Starts, watches and stops an engine. Belongs to one asyncio loop."""

    def frontend_slot(self) -> FrontendSlot:
        """The slot of the frontend that starts the engine, at the queues that there are now."""

    def renew_queues(self) -> None:
        """Make queues anew, for a process forked from the one that made the placement."""

    async def start(
        self, config: EngineConfig, progress: Progress | None, watcher: Watcher
    ) -> EngineInfo:
        """Load the model and start the actors.

        Raises:
            PyengineError: As :meth:`EngineActors.load` raises it.
        """

    def cleared(self) -> None:
        """No request of this frontend is left that may have killed the engine."""

    async def sleep(self) -> None:
        """End the engine until :meth:`wake_up`; its queues stay. Idempotent.

        Raises:
            ConfigError: It is no process of its own.
            EngineDeadError: It has died for good.
        """

    async def wake_up(self) -> None:
        """Start the engine again on the same queues. Idempotent.

        Raises:
            PyengineError: It cannot be loaded now; it sleeps on.
        """

    async def close(self) -> None:
        """Stop the actors and give everything back. Idempotent."""

"""Refuses requests of an engine that is full before any dear work is done for them."""

from functools import cached_property

from pyengine.actors.heartbeat import Heartbeat
from pyengine.errors import OverloadedError
from pyengine.settings.config import EngineConfig


class Admission:
    """Counts the requests of all frontends, from before their bodies are read to their ends.

    The scheduler's own limit of waiting requests is exact; it is reached behind reading, rendering
    and tokenizing, of which thousands of refused requests would be a load of seconds. One
    instance a frontend; lives on its loop.
    """

    def __init__(self, config: EngineConfig, heartbeat: Heartbeat, frontend: int) -> None:
        self._config = config
        self._page = heartbeat
        self._frontend = frontend
        self._own = 0
        heartbeat.set_load(frontend, 0)  # of a predecessor that died

    @cached_property
    def most(self) -> int:
        """Requests that an engine of this configuration can have, running and waiting."""
        return self._config.most_requests

    def enter(self) -> None:
        """Count a request.

        Raises:
            OverloadedError: The engine is full.
        """
        if self._page.load() >= self.most:
            raise OverloadedError("the waiting queue is full; try again in a moment")
        self._own += 1
        self._page.set_load(self._frontend, self._own)

    def leave(self) -> None:
        """A request that was counted has ended."""
        self._own -= 1
        self._page.set_load(self._frontend, self._own)

"""Refuses requests of an engine that is full before any dear work is done for them."""

from collections import Counter
from functools import cached_property

from pyengine.actors.heartbeat import Heartbeat
from pyengine.errors import OverloadedError
from pyengine.settings.config import EngineConfig

# A tenant's share of the waiting requests may be as many as this times the places that are free: a
# dynamic threshold (Choudhury and Hahne, 1998), which always leaves places to other tenants.
_OF_FREE = 7


class Admission:
    """Counts the requests of all frontends, from before their bodies are read to their ends.

    The scheduler's own limit of waiting requests is exact; it is reached behind reading, rendering
    and tokenizing, of which thousands of refused requests would be a load of seconds. No tenant can
    fill the queue: one alone gets seven eighths of it, and the rest is there for others. One
    instance a frontend; lives on its loop.
    """

    def __init__(self, config: EngineConfig, heartbeat: Heartbeat, frontend: int) -> None:
        self._config = config
        self._page = heartbeat
        self._frontend = frontend
        self._of_tenants: Counter[str | None] = Counter()
        heartbeat.set_load(frontend, 0)  # of a predecessor that died

    @cached_property
    def most(self) -> int:
        """Requests that an engine of this configuration can have, running and waiting."""
        return self._config.most_requests

    def enter(self, tenant: str | None = None, answers: int = 1) -> None:
        """Count a request of a tenant; None is a request without an API key.

        Args:
            tenant: The tenant of the request.
            answers: How many it asks for, which all wait in the queue: one until it is read.

        Raises:
            OverloadedError: The engine is full, or has too many of this tenant's.
        """
        load = self._page.load() + answers - 1
        free = self.most - load
        if free <= 0:
            raise OverloadedError("the waiting queue is full; try again in a moment")
        waiting = max(load - self.most + self._config.max_waiting, 0)
        if tenant is not None:
            its = self._of_tenants[tenant] + answers - 1
            if its * waiting > _OF_FREE * free * load:
                text = f"the waiting queue is full of {tenant}'s; try again in a moment"
                raise OverloadedError(text)
        self._count(tenant, answers)

    def leave(self, tenant: str | None = None, answers: int = 1) -> None:
        """A request of the tenant has ended, of which that many answers were counted."""
        self._count(tenant, -answers)

    def _count(self, tenant: str | None, more: int) -> None:
        self._of_tenants[tenant] += more
        if not self._of_tenants[tenant]:
            del self._of_tenants[tenant]
        self._page.set_load(self._frontend, self._of_tenants.total())

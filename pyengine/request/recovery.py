"""Decides after the engine's death which requests go on, are quarantined or fail.

::

    engine dies ──► each request it had: deaths + 1
                      ├─ alone in the engine, and two deaths: failed
                      └─ sent from quarantine: failed

    engine is back ──► requests with two deaths and more: quarantined. They are sent one at a time,
                         │  the others wait; each is released by its first delta from the new engine
                         └─ then all others are sent together

So a request that brings the engine down twice is failed, and those that only ran beside it go on.
"""

from collections import deque
from collections.abc import Iterable

from pyengine.request.request import RequestActor

DEATHS = 2


class Recovery:
    """The quarantine of one frontend's requests. Lives on its loop.

    Attributes:
        alone: The quarantined request that the engine runs by itself just now.
    """

    def __init__(self) -> None:
        self.alone: RequestActor | None = None
        self._quarantined: deque[RequestActor] = deque()

    def engine_died(self, requests: Iterable[RequestActor]) -> RequestActor | None:
        """Count the death against those of ``requests`` that the engine had.

        Returns the request to be failed for it, if there is one.
        """
        had = [actor for actor in requests if actor.sent]
        for actor in had:
            actor.sent = False
            actor.deaths += 1
        alone, self.alone = self.alone, None
        self._quarantined.clear()
        if alone in had:
            return alone
        return had[0] if len(had) == 1 and had[0].deaths >= DEATHS else None

    def engine_is_back(self, requests: Iterable[RequestActor]) -> None:
        """Quarantine those of ``requests`` with too many deaths."""
        self._quarantined.extend(actor for actor in requests if actor.deaths >= DEATHS)

    def next_quarantined(self) -> RequestActor | None:
        """The next quarantined request, to be sent alone; None when there is none left."""
        self.alone = None
        while self._quarantined and self.alone is None:
            actor = self._quarantined.popleft()
            self.alone = None if actor.ended else actor
        return self.alone

    def release(self, actor: RequestActor) -> bool:
        """``actor`` got a delta from the new engine, or has ended.

        Returns whether that releases it from quarantine, so that the next request may be sent.
        """
        if actor is not self.alone:
            return False
        actor.deaths = 0
        return True

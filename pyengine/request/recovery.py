"""Decides after an engine's death which requests go on, are quarantined or fail.

::

    engine dies ──► each request it had: deaths + 1
                      └─ one that was on trial alone, for the second time: failed

    engine is back ──► requests with two deaths and more: quarantined. They are sent one at a time,
                         │  the others wait; each is released by its first delta from the new engine
                         └─ then all others are sent together

So a request that brings the engine down again and again is failed, and those that only ran beside
it go on, also where the engine was killed from outside during a trial. The placement lets one
frontend after the other hold its trials, so that only one request of all is on trial at a time.
"""

from collections import deque
from collections.abc import Iterable

from pyengine.request.request import RequestActor

DEATHS = 2
DEATHS_ALONE = 2


class Recovery:
    """The quarantine of one frontend's requests. Lives on its loop.

    Attributes:
        alone: The quarantined request that is on trial just now.
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
        if alone is None or alone not in had:
            return None
        alone.deaths_alone += 1
        return alone if alone.deaths_alone >= DEATHS_ALONE else None

    def engine_sleeps(self, requests: Iterable[RequestActor]) -> None:
        """The engine was ended on purpose: none of ``requests`` has to do with it."""
        for actor in requests:
            actor.sent = False
        self.alone = None
        self._quarantined.clear()

    def engine_is_back(self, requests: Iterable[RequestActor]) -> None:
        """Quarantine those of ``requests`` with too many deaths, the most suspect first."""
        suspects = [actor for actor in requests if actor.deaths >= DEATHS]
        self._quarantined.extend(sorted(suspects, key=lambda actor: -actor.deaths_alone))

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
        actor.deaths = actor.deaths_alone = 0
        return True

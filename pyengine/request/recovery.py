"""Which requests go on after the engine's death, and which are tried alone or given up.

::

    engine dies ──► each request it had: deaths + 1      engine is back
                      │                                    │
                      ├─ alone, and two deaths: failed     ├─ suspects (two deaths and more): sent
                      │  (it has brought the engine down)  │  one at a time, the others wait, until
                      └─ dies while one is on trial:       │  each has got a first delta: acquitted
                         that one is failed                └─ then all others together

So a request that brings the engine down twice is failed, and those that only stood beside it live.
"""

from collections import deque
from collections.abc import Iterable

from pyengine.request.request import RequestActor

DEATHS = 2


class Recovery:
    """The suspects of one frontend. Lives on its loop.

    Attributes:
        on_trial: The suspect that the engine has for itself just now.
    """

    def __init__(self) -> None:
        self.on_trial: RequestActor | None = None
        self._suspects: deque[RequestActor] = deque()

    def engine_died(self, requests: Iterable[RequestActor]) -> RequestActor | None:
        """Count the death against those of ``requests`` that the engine had.

        Returns the one that is to be failed for it, if one is.
        """
        had = [actor for actor in requests if actor.sent]
        for actor in had:
            actor.sent = False
            actor.deaths += 1
        culprit, self.on_trial = self.on_trial, None
        self._suspects.clear()
        if culprit in had:
            return culprit
        return had[0] if len(had) == 1 and had[0].deaths >= DEATHS else None

    def engine_is_back(self, requests: Iterable[RequestActor]) -> None:
        """Line up the suspects among ``requests``."""
        self._suspects.extend(actor for actor in requests if actor.deaths >= DEATHS)

    def next_trial(self) -> RequestActor | None:
        """The next suspect to be sent alone; None when there is none left."""
        self.on_trial = None
        while self._suspects and self.on_trial is None:
            suspect = self._suspects.popleft()
            self.on_trial = None if suspect.ended else suspect
        return self.on_trial

    def acquits(self, actor: RequestActor) -> bool:
        """``actor`` got something from the new engine, or has ended; whether a trial is over."""
        if actor is not self.on_trial:
            return False
        actor.deaths = 0
        return True

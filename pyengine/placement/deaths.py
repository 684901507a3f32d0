"""How often a process may die before it is given up."""

import time
from collections import deque

DEATHS = 5
WITHIN_S = 60.0


class Deaths:
    """The deaths of the last :data:`WITHIN_S` seconds."""

    def __init__(self) -> None:
        self._times: deque[float] = deque()

    def one_more(self) -> bool:
        """Count one; whether that is still within bounds."""
        now = time.monotonic()
        self._times.append(now)
        while now - self._times[0] > WITHIN_S:
            self._times.popleft()
        return len(self._times) <= DEATHS

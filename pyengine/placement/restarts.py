"""How often a process that dies is started again."""

import time
from collections import deque

# Two requests that kill the engine take six deaths until both are found.
MAX_DEATHS = 8
WINDOW_S = 60.0


class RestartLimit:
    """Counts the deaths of a process within the last :data:`WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    def allows_another(self) -> bool:
        """Count a death; False if there were more than :data:`MAX_DEATHS` within the window."""
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > WINDOW_S:
            self._deaths.popleft()
        return len(self._deaths) <= MAX_DEATHS

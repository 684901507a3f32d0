"""How often a process that dies is started again, and how soon."""

import asyncio
import time
from collections import deque

# Two requests that kill the engine take six deaths until both are found.
MAX_DEATHS = 8
WINDOW_S = 60.0
# What kills each new process within a moment has gone when the last of these is over.
PAUSES_S = (0.0, 0.0, 0.0, 0.5, 1.0)


class RestartLimit:
    """Counts the deaths of a process within the last :data:`WINDOW_S` seconds."""

    def __init__(self) -> None:
        self._deaths: deque[float] = deque()

    async def allows_another(self) -> bool:
        """Count a death, and pause after the third within the window; False, at once, after more
        than :data:`MAX_DEATHS`.
        """
        now = time.monotonic()
        self._deaths.append(now)
        while now - self._deaths[0] > WINDOW_S:
            self._deaths.popleft()
        if len(self._deaths) > MAX_DEATHS:
            return False
        await asyncio.sleep(PAUSES_S[min(len(self._deaths), len(PAUSES_S)) - 1])
        return True

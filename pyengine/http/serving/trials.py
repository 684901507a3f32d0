"""The order in which workers go on after a restart of the engine.

Each in its turn sends the requests that may have killed the engine, one at a time; when all have,
everything else is sent. So at most one request of all workers is on trial, and only that one can be
failed for the next death (:mod:`pyengine.request.recovery`).

::

    up ──► Up to worker 0 ──► its Cleared ──► Up to worker 1 ──► its Cleared ──► GoOn to all
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable

from pyengine.placement.engine_messages import GoOn, Up
from pyengine.queues import EngineInfo


class Trials:
    """Decides whose turn it is. Lives on the supervisor's loop.

    Attributes:
        info: The facts about the engine while it is up.
        over: Set while the engine is up and all workers have had their turn.
    """

    def __init__(self, send: Callable[[int, Up | GoOn], None]) -> None:
        """``send`` sends a message to the worker with that index."""
        self.info: EngineInfo | None = None
        self.over = asyncio.Event()
        self._send = send
        self._turn: int | None = None
        self._waiting: deque[int] = deque()
        self._released: set[int] = set()

    def up(self, info: EngineInfo, workers: Iterable[int]) -> None:
        """The engine runs, and these workers are to go on."""
        self.info = info
        self._released = set()
        self._waiting = deque(workers)
        self._next()

    def down(self) -> None:
        """The engine has died."""
        self.info, self._turn = None, None
        self.over.clear()

    def joined(self, worker: int) -> None:
        """A worker was started."""
        if self.info is not None:
            self.over.clear()
            self._waiting.append(worker)
            if self._turn is None:
                self._next()

    def left(self, worker: int) -> None:
        """A worker has died."""
        self._released.discard(worker)
        if worker in self._waiting:
            self._waiting.remove(worker)
        if worker == self._turn:
            self._turn = None
            self._next()

    def cleared(self, worker: int) -> None:
        """``worker`` has no request any more that is to be tried."""
        if worker == self._turn:
            self._next()

    def _next(self) -> None:
        assert self.info is not None
        if self._turn is not None:
            self._released.add(self._turn)
        self._turn = self._waiting.popleft() if self._waiting else None
        if self._turn is not None:
            self._send(self._turn, Up(self.info))
            return
        for worker in self._released:
            self._send(worker, GoOn())
        self._released = set()
        self.over.set()

"""Commands of administrators: one HTTP worker is asked, all of them carry it out.

::

    worker 0 ── Command ──► supervisor ── Select ──► every worker
             ◄── Done ────             ◄── Selected ──
                                └── sleep, wake up ──► the engine's placement
"""

import asyncio
import itertools
from collections.abc import Callable, Iterable

from pyengine.errors import PyengineError
from pyengine.http.admin.administration import RunningRequest
from pyengine.http.serving.trials import Trials
from pyengine.http.serving.worker_messages import Command, Done, Select, Selected
from pyengine.placement import Placement
from pyengine.placement.children import Failed


class _Asking:
    """One question to all workers: who has still to answer, and the answers so far."""

    def __init__(self, workers: Iterable[int]) -> None:
        self.waiting = set(workers)
        self.found: list[RunningRequest] = []
        self.over = asyncio.Event()
        self.heard()

    def heard(self) -> None:
        """Go on if no process is waited for."""
        if not self.waiting:
            self.over.set()


class Commands:
    """Carries commands out. Lives on the supervisor's loop."""

    def __init__(
        self,
        placement: Placement,
        trials: Trials,
        workers: Callable[[], Iterable[int]],
        send: Callable[[int, Select | Done], None],
    ) -> None:
        """Nothing is asked yet."""
        self._placement = placement
        self._trials = trials
        self._workers = workers
        self._send = send
        self._numbers = itertools.count()
        self._askings: dict[int, _Asking] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def take(self, worker: int, command: Command) -> None:
        """Carry out a command, and answer the worker that it came to."""
        task = asyncio.create_task(self._answer(worker, command))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def selected(self, worker: int, message: Selected) -> None:
        """A worker's part of an answer."""
        if (asking := self._askings.get(message.number)) is not None:
            asking.found += message.requests
            asking.waiting.discard(worker)
            asking.heard()

    def left(self, worker: int) -> None:
        """A worker has died, and its requests with it."""
        for asking in self._askings.values():
            asking.waiting.discard(worker)
            asking.heard()

    def close(self) -> None:
        """Drop what is under way."""
        for task in self._tasks:
            task.cancel()

    async def _answer(self, worker: int, command: Command) -> None:
        try:
            found = await self._carry_out(command)
        except (PyengineError, OSError) as error:
            self._send(worker, Done(command.ticket, failed=Failed.of(error)))
        else:
            self._send(worker, Done(command.ticket, found))

    async def _carry_out(self, command: Command) -> list[RunningRequest]:
        match command.what:
            case "sleep":
                await self._placement.sleep()
                return []
            case "wake_up":
                await self._placement.wake_up()
                await self._trials.over.wait()
                return []
            case "list" | "abort":
                return await self._ask_all(command.request_id, command.what == "abort")

    async def _ask_all(self, request_id: str | None, abort: bool) -> list[RunningRequest]:
        number, workers = next(self._numbers), list(self._workers())
        asking = self._askings[number] = _Asking(workers)
        try:
            for worker in workers:
                self._send(worker, Select(number, request_id, abort))
            await asking.over.wait()
        finally:
            del self._askings[number]
        return sorted(asking.found, key=lambda request: -request.age_s)

"""The requests of all HTTP workers, as one of them reaches them: through the supervisor."""

import asyncio
import itertools
from collections.abc import Callable
from typing import Literal

from pyengine.http.admin.administration import RunningRequest
from pyengine.http.serving.worker_messages import Command, Done


class AllRequests:
    """An Administration whose commands go to the supervisor. Lives on the worker's loop.

    Attributes:
        alone: False.
    """

    alone = False

    def __init__(self, send: Callable[[Command], None]) -> None:
        """``send`` sends a message to the supervisor."""
        self._send = send
        self._tickets = itertools.count()
        self._waiting: dict[int, asyncio.Future[list[RunningRequest]]] = {}

    async def requests(self) -> list[RunningRequest]:
        """Lists the requests that all workers are answering, oldest first."""
        return await self.command("list")

    async def abort(self, request_id: str | None) -> list[RunningRequest]:
        """End those with that id, or all; returns them."""
        return await self.command("abort", request_id)

    async def command(
        self, what: Literal["list", "abort", "sleep", "wake_up"], request_id: str | None = None
    ) -> list[RunningRequest]:
        """Wait until the supervisor has carried out a command.

        Raises:
            PyengineError: It could not.
        """
        ticket = next(self._tickets)
        done: asyncio.Future[list[RunningRequest]] = asyncio.get_running_loop().create_future()
        self._waiting[ticket] = done
        try:
            self._send(Command(ticket, what, request_id))
            return await done
        finally:
            del self._waiting[ticket]

    def done(self, message: Done) -> None:
        """The supervisor's answer."""
        waiting = self._waiting.get(message.ticket)
        if waiting is None or waiting.done():
            return
        if message.failed is not None:
            waiting.set_exception(message.failed.error())
        else:
            waiting.set_result(message.requests)

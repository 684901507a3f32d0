"""The Frontend: an asyncio loop's end of the queues, and the owner of its Request actors."""

import asyncio
import itertools
from collections import deque

from pyengine._core import MailboxClosed, MailboxFull, Stage, Timeline
from pyengine.actors.actor import ActorRef, logger
from pyengine.actors.request import RequestActor
from pyengine.errors import EngineDeadError, OverloadedError, PyengineError
from pyengine.messages import (
    Report,
    ReportRequest,
    RequestKey,
    Submit,
    decode,
    encode_abort,
    encode_report_request,
    encode_submit,
)

RETRY_S = 0.005


class Frontend:
    """Sends requests to the Scheduler and hands what comes back to the Request actors.

    Lives on one asyncio loop; :meth:`abort` may come from any thread.

    Attributes:
        ref: Its own mailbox, which the Detokenizer and the Scheduler write.
        requests: The Request actors that have not ended, by number.
    """

    def __init__(
        self, index: int, inbox: ActorRef, scheduler: ActorRef, timeline: Timeline
    ) -> None:
        self.index = index
        self.ref = inbox
        self.requests: dict[int, RequestActor] = {}
        self.failure: PyengineError | None = None
        self._scheduler = scheduler
        self._timeline = timeline
        self._numbers = itertools.count()
        self._reports: dict[int, asyncio.Future[Report]] = {}
        self._unsent: deque[bytes] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Begin to read the mailbox, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(self.ref.mailbox.fileno(), self._read)
        self._read()

    def next_key(self) -> RequestKey:
        """A key for a new request."""
        return RequestKey(self.index, next(self._numbers))

    def submit(self, submit: Submit) -> RequestActor:
        """Begin a request.

        Raises:
            OverloadedError: The Scheduler's mailbox is full.
            EngineDeadError: The engine has stopped.
        """
        if self.failure is not None:
            raise self.failure
        self._timeline.begin()
        try:
            self._scheduler.send(encode_submit(submit))
        except MailboxFull:
            raise OverloadedError("the engine's mailbox is full; try again in a moment") from None
        except MailboxClosed:
            raise EngineDeadError("the engine has stopped") from None
        actor = RequestActor(submit)
        self.requests[submit.key.request] = actor
        self._timeline.lap(Stage.MESSAGE)
        return actor

    def abort(self, key: RequestKey) -> None:
        """Ask the Scheduler to end ``key``. Any thread; never lost while the engine lives."""
        message = encode_abort(key)
        try:
            self._scheduler.send(message)
        except MailboxFull:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._send_later, message)
        except MailboxClosed:
            pass  # with the engine, its requests have ended

    async def report(self) -> Report:
        """How things stand at the Scheduler.

        Raises:
            EngineDeadError: The engine has stopped.
        """
        if self.failure is not None:
            raise self.failure
        ticket = next(self._numbers)
        answer: asyncio.Future[Report] = asyncio.get_running_loop().create_future()
        self._reports[ticket] = answer
        try:
            self._send_later(encode_report_request(ReportRequest(self.index, ticket)))
            return await answer
        finally:
            del self._reports[ticket]

    async def drained(self) -> None:
        """Wait until no request is left."""
        while self.requests:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Stop reading; every request that is left ends with EngineDeadError. Idempotent."""
        if self._loop is not None:
            self._loop.remove_reader(self.ref.mailbox.fileno())
            self._loop = None
        self.fail(EngineDeadError("the engine was closed"))

    def fail(self, error: PyengineError) -> None:
        """Answer everyone who waits with ``error``; nothing more will come."""
        self.failure = self.failure or error
        for actor in self.requests.values():
            actor.fail(error)
        self.requests.clear()
        self._wake_idle()
        for answer in self._reports.values():
            if not answer.done():
                answer.set_exception(error)

    def _send_later(self, message: bytes) -> None:
        """Send now, or as soon as the Scheduler's mailbox has room."""
        self._unsent.append(message)
        self._flush()

    def _flush(self) -> None:
        try:
            while self._unsent:
                self._scheduler.send(self._unsent[0])
                self._unsent.popleft()
        except MailboxFull:
            if self._loop is not None:
                self._loop.call_later(RETRY_S, self._flush)
        except MailboxClosed:
            self._unsent.clear()

    def _read(self) -> None:
        """The mailbox has something: hand it on, a bounded number of messages at a time."""
        self._timeline.begin()
        try:
            for message in self.ref.mailbox.drain():
                self._dispatch(message)
            self._timeline.lap(Stage.MESSAGE)
            if not self.ref.mailbox.arm() and self._loop is not None:
                self._loop.call_soon(self._read)  # after the others had their turn
        except MailboxClosed:
            if self._loop is not None:
                self._loop.remove_reader(self.ref.mailbox.fileno())
            self.fail(EngineDeadError("the engine has stopped"))

    def _dispatch(self, message: bytes) -> None:
        body = decode(message)
        if isinstance(body, list):
            for delta in body:
                actor = self.requests.get(delta.request)
                if actor is None:
                    continue  # it ended here while this was on its way
                actor.deliver(delta)
                if actor.ended:
                    del self.requests[delta.request]
            if not self.requests:
                self._wake_idle()
        elif isinstance(body, Report):
            answer = self._reports.get(body.ticket)
            if answer is not None and not answer.done():
                answer.set_result(body)
        else:
            logger.warning("a frontend got a message that is not for it: %s", type(body).__name__)

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)

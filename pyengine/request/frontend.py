"""The Frontend: an asyncio loop's end of the queues, and the owner of its Request actors."""

import asyncio
import itertools
from collections.abc import Callable
from typing import cast

from pyengine._core import MailboxClosed, MailboxFull, Stage, Timeline, Track
from pyengine.actors.actor import ActorRef, logger
from pyengine.errors import (
    AdapterError,
    EngineDeadError,
    InvalidRequestError,
    OverloadedError,
    PyengineError,
    RequestAbortedError,
)
from pyengine.logprobs import Spelling, unspelled
from pyengine.messages import (
    AdapterLoaded,
    Answer,
    Delta,
    LoadAdapter,
    Report,
    ReportRequest,
    RequestKey,
    ResetDone,
    ResetRequest,
    Submit,
    decode,
    encode_abort,
    encode_load_adapter,
    encode_report_request,
    encode_reset_request,
    encode_submit,
)
from pyengine.request.loop_lag import LoopLag
from pyengine.request.outbox import Outbox
from pyengine.request.recovery import Recovery
from pyengine.request.request import RequestActor


class Frontend:
    """Sends requests to the Scheduler and hands what comes back to the Request actors.

    Lives on one asyncio loop; :meth:`abort` may come from any thread.

    Attributes:
        ref: The frontend's mailbox, which the Detokenizer and the Scheduler write.
        requests: The Request actors that have not ended, by number.
    """

    def __init__(
        self,
        index: int,
        inbox: ActorRef,
        scheduler: ActorRef,
        timeline: Timeline,
        *,
        first_request: int = 0,
        max_held: int = 4096,
    ) -> None:
        """Not reading yet.

        Args:
            index: The place among the engine's frontends.
            inbox: The frontend's mailbox.
            scheduler: The Scheduler's mailbox, which gets the requests.
            timeline: Takes the frontend's spans.
            first_request: The first request's number, beyond those of a predecessor that died.
            max_held: Most new requests that wait while the engine is restarted.
        """
        self.index = index
        self.ref = inbox
        self.requests: dict[int, RequestActor] = {}
        self.failure: PyengineError | None = None
        self._scheduler = scheduler
        self._timeline = timeline
        self._numbers = itertools.count(first_request)
        self._questions: dict[int, tuple[bytes, asyncio.Future[Answer]]] = {}
        self._outbox = Outbox(scheduler, self._end_too_large)
        self._loop: asyncio.AbstractEventLoop | None = None
        self._idle: asyncio.Future[None] | None = None
        self._max_held = max_held
        self._held = 0
        self._holding = False  # the engine is down, or quarantined requests are on trial
        self._cleared: Callable[[], None] | None = None
        self._recovery = Recovery()
        self._delivered: list[RequestActor] = []  # whose readers have not been told
        self._lag = LoopLag(timeline, lambda: self.requests)

    def open(self) -> None:
        """Begin to read the mailbox, on the running loop."""
        self._loop = asyncio.get_running_loop()
        self._outbox.open()
        self._loop.add_reader(self.ref.mailbox.fileno(), self._read)
        self._read()

    def next_key(self) -> RequestKey:
        """A key for a new request."""
        return RequestKey(self.index, next(self._numbers))

    def submit(self, submit: Submit, spelling: Spelling = unspelled) -> RequestActor:
        """Begin a request. While the engine is restarted it waits.

        Args:
            submit: The request.
            spelling: The bytes of a token by its id, for log-probabilities.

        Raises:
            OverloadedError: The Scheduler's mailbox is full, or too many wait for the engine.
            EngineDeadError: The engine has stopped.
        """
        if self.failure is not None:
            raise self.failure
        self._timeline.begin()
        actor = RequestActor(submit, spelling, self._timeline)
        if self._holding:
            self._hold()
        else:
            self._send_new(actor)
        self.requests[submit.key.request] = actor
        self._lag.start()
        self._timeline.end_span(Stage.MESSAGE)
        return actor

    def _send_new(self, actor: RequestActor) -> None:
        try:
            self._scheduler.send(encode_submit(actor.submit))
        except MailboxFull:
            raise OverloadedError("the engine's mailbox is full; try again in a moment") from None
        except MailboxClosed:
            if self._scheduler.mailbox.closed:
                raise EngineDeadError("the engine has stopped") from None
            self._hold()  # the engine has died; engine_died() will be called in a moment
        except ValueError:
            raise _too_large() from None
        else:
            actor.sent = True

    def _hold(self) -> None:
        if self._held >= self._max_held:
            raise OverloadedError("the engine is being restarted; try again in a moment")
        self._held += 1

    def abort(self, key: RequestKey) -> None:
        """End ``key``. Any thread; never lost while the engine lives."""
        actor = self.requests.get(key.request)
        if actor is not None:
            actor.aborted = True
            if not actor.sent:
                self._call_soon(self._drop_aborted)
                return
        message = encode_abort(key)
        try:
            self._scheduler.send(message)
        except MailboxFull:
            self._call_soon(self._outbox.send, message)
        except MailboxClosed:
            pass  # the engine has ended, and its requests with it
        if actor is not None:
            self._call_soon(self._end_aborted, key.request)

    def _end_aborted(self, number: int) -> None:
        """End an aborted request here; what the engine still sends of it is dropped."""
        actor = self.requests.pop(number, None)
        if actor is None:
            return
        actor.fail(RequestAbortedError("the request was aborted"))
        self._ended(actor)

    def _ended(self, actor: RequestActor) -> None:
        """``actor`` has ended here and was removed from the requests."""
        if self._recovery.release(actor):
            self._try_next()
        if not self.requests:
            self._wake_idle()

    def send(self, message: bytes) -> None:
        """Send a message to the Scheduler as soon as its mailbox has room.

        A message that has not been read when the engine dies is dropped.
        """
        self._outbox.send(message)

    def engine_died(self) -> None:
        """Hold everything back until :meth:`go_on`."""
        self._hold_back()
        failed = self._recovery.engine_died(self.requests.values())
        if failed is not None:
            failed.fail(EngineDeadError("the engine died twice while running this request alone"))
            del self.requests[failed.submit.key.request]
        self._drop_aborted()

    def engine_sleeps(self) -> None:
        """As :meth:`engine_died`, but no request is to blame."""
        self._hold_back()
        self._recovery.engine_sleeps(self.requests.values())
        self._drop_aborted()

    def _hold_back(self) -> None:
        self._holding = True
        self._cleared = None
        self._outbox.clear()
        self._drain()

    def engine_is_back(self, cleared: Callable[[], None]) -> None:
        """A new engine reads the Scheduler's mailbox: quarantined requests are tried.

        Args:
            cleared: Called when none of them is left. All others wait for :meth:`go_on`.
        """
        self._cleared = cleared
        self._drain()
        self._drop_aborted()
        self._recovery.engine_is_back(self.requests.values())
        for question, answer in self._questions.values():
            if not answer.done():
                self._outbox.send(question)
        self._try_next()

    def _try_next(self) -> None:
        """Send the next quarantined request, or say that there is none."""
        alone = self._recovery.next_quarantined()
        if alone is not None:
            self._send_again(alone)
        elif self._cleared is not None:
            cleared, self._cleared = self._cleared, None
            cleared()

    def go_on(self) -> None:
        """No frontend has a quarantined request any more: every request goes on where it was."""
        self._holding = False
        self._held = 0
        for actor in list(self.requests.values()):
            if not actor.sent:
                self._send_again(actor)

    def _send_again(self, actor: RequestActor) -> None:
        actor.sent = True
        self._outbox.send(encode_submit(actor.continued()), actor.submit.key.request)

    def _drop_aborted(self) -> None:
        """End the aborted requests that the engine does not have."""
        for number, actor in list(self.requests.items()):
            if actor.aborted and not actor.sent:
                actor.fail(RequestAbortedError("the request was aborted"))
                del self.requests[number]
                self._held = max(0, self._held - 1)
        if not self.requests:
            self._wake_idle()

    async def report(self, *, recorded: bool = False) -> Report:
        """The Scheduler's counters, distributions and times, and what was ``recorded``.

        Raises:
            EngineDeadError: The engine has stopped.
        """
        ticket = next(self._numbers)
        question = encode_report_request(ReportRequest(self.index, ticket, recorded))
        return cast("Report", await self._ask(ticket, question))

    async def reset_prefix_cache(self) -> int:
        """Forget all cached prefixes; returns how many blocks are free now that were cached.

        Raises:
            EngineDeadError: The engine has stopped.
        """
        ticket = next(self._numbers)
        question = encode_reset_request(ResetRequest(self.index, ticket))
        return cast("ResetDone", await self._ask(ticket, question)).blocks

    async def load_adapter(self, digest: bytes, folder: str) -> None:
        """Load the adapter with that digest into the engine.

        Raises:
            AdapterError: It does not fit the model, or there is no room for it.
            EngineDeadError: The engine has stopped.
        """
        ticket = next(self._numbers)
        question = encode_load_adapter(LoadAdapter(self.index, ticket, digest, folder))
        loaded = cast("AdapterLoaded", await self._ask(ticket, question))
        if loaded.error is not None:
            raise AdapterError(loaded.error)

    async def _ask(self, ticket: int, question: bytes) -> Answer:
        """The Scheduler's answer with that ticket; asked again if the engine dies before it."""
        if self.failure is not None:
            raise self.failure
        answer: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._questions[ticket] = question, answer
        try:
            self._outbox.send(question)
            return await answer
        finally:
            del self._questions[ticket]

    async def drained(self) -> None:
        """Wait until no request is left."""
        while self.requests:
            if self._idle is None:
                self._idle = asyncio.get_running_loop().create_future()
            await asyncio.shield(self._idle)

    def close(self) -> None:
        """Stop reading; every request that is left ends with EngineDeadError. Idempotent."""
        self._lag.stop()
        if self._loop is not None:
            self._loop.remove_reader(self.ref.mailbox.fileno())
            self._loop = None
            self._outbox.close()
        self.fail(EngineDeadError("the engine was closed"))

    def fail(self, error: PyengineError) -> None:
        """End every request and question with ``error``; nothing more will come."""
        self.failure = self.failure or error
        for actor in self.requests.values():
            actor.fail(error)
        self.requests.clear()
        self._wake_idle()
        for _, answer in self._questions.values():
            if not answer.done():
                answer.set_exception(error)

    def _call_soon(self, call: Callable[..., None], *arguments: bytes | int) -> None:
        """Call on the loop, from any thread."""
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(call, *arguments)

    def _end_too_large(self, number: int | None) -> None:
        """Fail the request that was too large to be sent; the others go on."""
        actor = None if number is None else self.requests.pop(number, None)
        if actor is not None:
            actor.fail(_too_large())
            self._ended(actor)

    def _read(self) -> None:
        """Hand on what the mailbox has, a bounded number of messages at a time."""
        self._timeline.begin()
        try:
            for message in self.ref.mailbox.drain():
                self._dispatch(message)
            self._timeline.end_span(Stage.MESSAGE)
            self._show()
            if not self.ref.mailbox.arm() and self._loop is not None:
                self._loop.call_soon(self._read)  # after the loop's other callbacks
        except MailboxClosed:
            self._closed()

    def _drain(self) -> None:
        """Hand on all that the mailbox has; an engine that died sends no more."""
        try:
            while messages := self.ref.mailbox.drain():
                for message in messages:
                    self._dispatch(message)
            self._show()
        except MailboxClosed:
            self._closed()

    def _show(self) -> None:
        """Tell the readers what was delivered: all messages that had come, as one update."""
        for actor in self._delivered:
            try:
                actor.show()
            except Exception as error:  # noqa: BLE001 - of one reader's sink; the others go on
                actor.fail(error)
                self.abort(actor.submit.key)
        self._delivered.clear()

    def _closed(self) -> None:
        if self._loop is not None:
            self._loop.remove_reader(self.ref.mailbox.fileno())
        self.fail(EngineDeadError("the engine has stopped"))

    def _dispatch(self, message: bytes) -> None:
        body = decode(message)
        if isinstance(body, list):
            for delta in body:
                self._deliver(delta)
            if not self.requests:
                self._wake_idle()
        elif isinstance(body, Answer):
            _, answer = self._questions.get(body.ticket, (b"", None))
            if answer is not None and not answer.done():
                answer.set_result(body)
        else:
            logger.warning(
                "a frontend ignored a message of an unexpected kind: %s", type(body).__name__
            )

    def _deliver(self, delta: Delta) -> None:
        actor = self.requests.get(delta.request)
        if actor is None:
            if delta.finish is None:
                # The request ended here, or was sent by a predecessor: abort it.
                self.abort(RequestKey(self.index, delta.request))
            return
        actor.deliver(delta)
        self._delivered.append(actor)
        if actor.ended:
            del self.requests[delta.request]
            self._record(actor)
        if self._recovery.release(actor):
            self._try_next()

    def _record(self, actor: RequestActor) -> None:
        """Record the phases of a request that has ended; its wait is the scheduler's to tell."""
        phases = actor.outcome.timing.phases()
        number = actor.submit.key.number
        for stage, (_, start, end) in zip((Stage.PREFILL, Stage.DECODE), phases[1:], strict=False):
            self._timeline.record(Track.REQUEST, stage, start, end, number)

    def _wake_idle(self) -> None:
        idle, self._idle = self._idle, None
        if idle is not None and not idle.done():
            idle.set_result(None)


def _too_large() -> InvalidRequestError:
    return InvalidRequestError("the request is too large for the engine's mailbox", param="prompt")

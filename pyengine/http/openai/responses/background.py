"""Responses in the background: generated where no client waits, their events stored.

::

    POST ──► Job: a queued response, a task ──► sse.stream ──► EventRecorder ──► store
                                                                                     │
    GET ?stream=true&starting_after=N, or the POST with `stream` ◄── follow ◄────────┘

An event is numbered by its ``sequence_number``. The process that generates has a lease on the
response; if it dies, readers see that from the lease, and the response has failed.
"""

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

import msgspec

from pyengine.chat.answer import ChatUpdate
from pyengine.errors import PyengineError
from pyengine.http.answering import Answers, Question, begin
from pyengine.http.errors import InternalError
from pyengine.http.local import written
from pyengine.http.openai.responses.earlier import ACTIVE, KIND
from pyengine.http.openai.responses.output import ResponseWriter
from pyengine.http.openai.schema.response_object import ResponseObject
from pyengine.http.store.clock import is_held
from pyengine.http.store.database import Part
from pyengine.http.store.store import Store
from pyengine.http.streams import sse
from pyengine.http.streams.event_stream import KEEP_ALIVE, EventStream

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_encode = msgspec.json.Encoder().encode
_EVENTS = "events"
_END = b"\n\n"
LOST = "The process that generated the response has died."


class EventRecorder:
    """A connection whose answer, a stream of events, is stored. Lives on the serving loop.

    What comes while a write is under way is the next write: a part of the stored response, whose
    number is that of its last event. The first one says that the response is in progress.
    """

    def __init__(self, store: Store, response: ResponseObject) -> None:
        self._store = store
        self._name = response.id
        self._response = response
        self._status = response.status  # as it is stored
        self._last = -1
        self._waiting = b""
        self._said = False
        self._writing: asyncio.Task[None] | None = None
        self._forgotten = asyncio.Event()

    async def client_disconnect(self) -> None:
        """Wait until the answer can be read no more: it was deleted."""
        await self._forgotten.wait()

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> "EventRecorder":
        """Begin the answer."""
        return self

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """An answer in one piece is the error of an exchange, which is an event before it."""

    def send_bytes(self, data: bytes) -> asyncio.Future[None]:
        """Store events, or say that the response is still worked on."""
        self._said = True
        self._waiting += b"" if data == KEEP_ALIVE else data
        if self._writing is None:
            self._writing = asyncio.create_task(self._write())
        return written()

    async def _write(self) -> None:
        try:
            while self._said:
                changed, self._status = self._response.status != self._status, self._response.status
                await self._put(_encode(self._response) if changed else None, lease=True)
        finally:
            self._writing = None

    async def finish(self, body: bytes) -> None:
        """Store the rest of the events with the response as it ended."""
        if self._writing is not None:
            await asyncio.wait({self._writing})
        await self._put(body, lease=False)

    async def _put(self, body: bytes | None, *, lease: bool) -> None:
        data, self._waiting, self._said = self._waiting, b"", False
        self._last += data.count(_END)
        parts = [Part(_EVENTS, self._last, data)] if data else []
        if await self._store.change(self._name, lambda _: body, *parts, lease=lease) is None:
            self._forgotten.set()


class Job:
    """A response that is generated in the background.

    Attributes:
        exchange: The exchange that asks the engine.
    """

    def __init__(self, front: "Exchange", writer: ResponseWriter) -> None:
        """Take over from ``front``, which answers with the response that is queued."""
        self._front = front
        self._writer = writer
        self._recorder = EventRecorder(front.service.store, writer.response)
        self.exchange = front.detach(cast("Any", self._recorder))

    async def begin(self, question: Question[ChatUpdate], items: Part) -> None:
        """Answer in a task; reply with the response as it is queued, or with its events.

        Args:
            question: The request.
            items: The items of the response's input, to be stored with it.

        Raises:
            PyengineError: The engine or the store refused it.
        """
        response = self._writer.response
        body = _encode(response)
        try:
            answers, _ = begin(self.exchange, question)
            await self._front.service.store.put(
                KIND, self._front.owner, response.id, body, items, lease=True
            )
        except BaseException:
            self.exchange.end()
            raise
        self._recorder.send_bytes(self._writer.queued())
        self.exchange.service.running.spawn(self.exchange, self._work(answers))
        if question.asked.stream:
            await follow(self._front, response.id, -1)
        else:
            self._front.reply(body)

    async def _work(self, answers: Answers) -> None:
        writer = self._writer
        try:
            await sse.stream(self.exchange, answers, writer, lambda: writer.ended(answers))
        except PyengineError as error:
            self._recorder.send_bytes(writer.error(self.exchange.explain(error)))
            raise
        except Exception:
            if writer.response.status in ACTIVE:
                self._recorder.send_bytes(writer.error(InternalError()))
            raise
        finally:
            await self._recorder.finish(_encode(writer.response))


async def follow(exchange: "Exchange", name: str, after: int) -> None:
    """Answer with the events of a response whose numbers are over ``after``, until it has ended.

    Raises:
        NoSuchObjectError: There is no such response.
        RSGIProtocolClosed: The client left.
    """
    store = exchange.service.store
    stream = EventStream(exchange)
    gone = asyncio.ensure_future(exchange.proto.client_disconnect())
    try:
        while not gone.done():
            row = await store.get(KIND, exchange.owner, name)
            parts = await store.parts(name, _EVENTS, after)
            data = b"".join(_since(parts, after))
            after = max([after, *(part.number for part in parts)])
            response = msgspec.json.decode(row.body)
            lost = response["status"] in ACTIVE and not is_held(row.lease)
            if lost:
                data += _lost(response, after + 1)
            if data:
                await stream.write(data)
            if lost or response["status"] not in ACTIVE:
                return
            await store.look()
    finally:
        gone.cancel()
        stream.end()


def _since(parts: list[Part], after: int) -> Iterator[bytes]:
    """The events behind number ``after``; the number of a part is that of its last event."""
    for part in parts:
        events = part.data.split(_END)[:-1]
        first = part.number - len(events) + 1
        yield from (event + _END for event in events[max(0, after + 1 - first) :])


def _lost(response: dict[str, Any], number: int) -> bytes:
    data = {"type": "response.failed", "sequence_number": number, "response": failed(response)}
    return b"event: response.failed\ndata: %b\n\n" % _encode(data)


def failed(response: dict[str, Any]) -> dict[str, Any]:
    """An unfinished response whose process has died."""
    return {**response, "status": "failed", "error": {"code": "server_error", "message": LOST}}

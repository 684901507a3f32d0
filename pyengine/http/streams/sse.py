"""Streams: answers written as they are generated, as server-sent events or lines of JSON.

What has piled up for a stream since its last write goes out as one: a Generation gives it as one
Update, and with several of them everything that is there is written together.

::

    Frontend ─► RequestActor ─┬─ text alone ────────► sink: (parse,) encode, write   no task wakes
                              └─ first, last, others ─► Update ─► stream(): encode, write
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Protocol, TypeVar, runtime_checkable

from pyengine._core import Stage, Timeline
from pyengine.chat.answer import ChatUpdate
from pyengine.completion import Update, Usage
from pyengine.errors import PyengineError
from pyengine.http.errors import InternalError
from pyengine.http.rsgi import ProtocolClosed
from pyengine.http.streams.event_stream import EVENTS, EventStream, StreamForm

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

T = TypeVar("T")
U = TypeVar("U", Update, ChatUpdate)
U_co = TypeVar("U_co", covariant=True)
U_contra = TypeVar("U_contra", Update, ChatUpdate, contravariant=True)


class Updating(Protocol[U_co]):
    """A Generation or a ChatGeneration."""

    def __aiter__(self) -> AsyncIterator[U_co]: ...

    def pass_updates(self, sink: Callable[[U_co], None]) -> None:
        """See :meth:`pyengine.request.generation.Generation.pass_updates`."""

    def pass_text(self, sink: Callable[[str], None], others: Callable[[U_co], None]) -> None:
        """See :meth:`pyengine.chat.generation.ChatGeneration.pass_text`."""

    def take_back(self) -> None:
        """Take the sink back."""


class Chunks(Protocol[U_contra]):
    """How the updates of one kind of answer look on the wire."""

    def first(self, index: int, update: U_contra) -> bytes:
        """The bytes before the first update of choice ``index``."""

    def update(self, index: int, update: U_contra) -> bytes:
        """The bytes of an update."""

    def last(self, usages: list[Usage]) -> bytes:
        """The end of the stream."""

    def error(self, error: PyengineError) -> bytes:
        """The end of a stream that failed."""


@runtime_checkable
class TextChunks(Protocol):
    """Chunks whose updates of text alone are the same but for the text."""

    def text_encoder(self, index: int) -> Callable[[str], bytes] | None:
        """What :meth:`Chunks.update` makes of an update that has nothing but text.

        None where this stream's chunks say more of each update, its usage for instance.
        """


async def stream(
    exchange: "Exchange",
    generations: Sequence[Updating[U]],
    chunks: Chunks[U],
    ended: Callable[[], Awaitable[None]] | None = None,
    form: StreamForm = EVENTS,
) -> None:
    """Answer with the updates of ``generations`` as they come.

    The answer begins with the first update, so that a request that fails before has a status of its
    own, or with a comment if that takes long. A later failure is a part of the stream, which then
    ends without :meth:`Chunks.last`.

    Args:
        exchange: The request.
        generations: The answers to it.
        chunks: Writes their updates.
        ended: Awaited once ``chunks`` has made the end of the stream, before that is sent.
        form: How the parts are told apart.

    Raises:
        PyengineError: Before the answer began.
        RSGIProtocolClosed: The client left.
    """
    timeline = exchange.service.engine.timeline
    events = EventStream(exchange, form)
    try:
        usages = await _written(generations, chunks, events, timeline)
        if events.begun:
            data = chunks.last(usages)
            if ended is not None:
                await ended()
            await events.write(data)
    except ProtocolClosed:
        raise
    except PyengineError as error:
        if not events.begun:
            raise
        await events.write(chunks.error(exchange.explain(error)))
        return
    except Exception:
        if events.begun:
            await events.write(chunks.error(InternalError()))
        raise
    finally:
        for generation in generations:
            generation.take_back()  # the sink, which holds this exchange
        events.end()


async def _written(
    generations: Sequence[Updating[U]], chunks: Chunks[U], events: EventStream, timeline: Timeline
) -> list[Usage]:
    """Write all updates as they come; the usage of each generation that had one."""
    usages: list[Usage | None] = [None] * len(generations)
    alone = generations[0] if len(generations) == 1 else None
    sending = None
    try:
        async with contextlib.aclosing(_batches(generations)) as batches:
            async for batch in batches:
                timeline.begin()
                data = _encoded(batch, chunks, usages)
                timeline.end_span(Stage.SSE_ENCODE)
                events.begin()
                if data:
                    sending = events.write(data)
                    timeline.end_span(Stage.SOCKET_WRITE)
                    await sending
                if alone is not None:
                    if events.takes_all:
                        _pass_on(alone, chunks, events, timeline)
                    alone = None
    finally:
        sending = None  # which may hold the answer, as the frame of an error does
    return [usage for usage in usages if usage is not None]


def _encoded(
    batch: Iterable[tuple[int, U]], chunks: Chunks[U], usages: list[Usage | None]
) -> bytes:
    """The chunks of some updates; notes their usage, which begins with a generation's first."""
    data = b""
    for index, update in batch:
        if usages[index] is None:
            data += chunks.first(index, update)
        data += chunks.update(index, update)
        usages[index] = update.usage
    return data


def _pass_on(
    generation: Updating[U], chunks: Chunks[U], events: EventStream, timeline: Timeline
) -> None:
    """Let what comes for the only answer of a stream be written where it is read."""
    others: Callable[[U], None] = _sink(partial(chunks.update, 0), events, timeline)
    if isinstance(chunks, TextChunks) and (encode := chunks.text_encoder(0)) is not None:
        generation.pass_text(_sink(encode, events, timeline), others)
    else:
        generation.pass_updates(others)


def _sink(
    encode: Callable[[T], bytes], events: EventStream, timeline: Timeline
) -> Callable[[T], None]:
    """Writes what comes. The frontend calls it behind a span of its own."""

    def write(piece: T) -> None:
        data = encode(piece)
        timeline.end_span(Stage.SSE_ENCODE)
        if data:  # a parser may hold text back
            events.write(data)  # if the client has left, the exchange learns it by itself
            timeline.end_span(Stage.SOCKET_WRITE)

    return write


async def _batches(
    generations: Sequence[Updating[U]],
) -> AsyncGenerator[Sequence[tuple[int, U]], None]:
    """The updates of all generations, each batch everything that has come since the last one."""
    if len(generations) == 1:
        async for update in generations[0]:
            yield ((0, update),)
        return
    ready: list[tuple[int, U]] = []
    more = asyncio.Event()

    async def pump(index: int, generation: Updating[U]) -> None:
        async for update in generation:
            ready.append((index, update))
            more.set()

    pumps = [asyncio.create_task(pump(*pair)) for pair in enumerate(generations)]
    for task in pumps:
        task.add_done_callback(lambda _: more.set())
    try:
        while True:
            await more.wait()
            more.clear()
            if ready:
                batch, ready[:] = list(ready), []
                yield batch
            for task in pumps:
                if task.done():
                    task.result()  # raises what ended it
            if not ready and all(task.done() for task in pumps):
                return
    finally:
        for task in pumps:
            task.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)

"""Server-sent events: chunks of text, encoded around a prefix that is made once a stream.

What has piled up for a stream since its last write goes out as one: a Generation gives it as one
Update, and with several prompts everything that is there is written together.
"""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING, Protocol

import msgspec

from pyengine._core import Stage
from pyengine.errors import PyengineError
from pyengine.http.backend import Generation, Update, Usage
from pyengine.http.errors import error_body, internal_error
from pyengine.http.rsgi import ProtocolClosed
from pyengine.http.schema.common import usage_object

if TYPE_CHECKING:
    from pyengine.http.exchange import Exchange

_encode = msgspec.json.Encoder().encode

DONE = b"data: [DONE]\n\n"


class Chunks(Protocol):
    """How the updates of one kind of completion look on the wire."""

    def first(self, index: int) -> bytes:
        """What stands before the text of choice ``index``."""

    def update(self, index: int, update: Update) -> bytes:
        """The text of an update, and its finish reason."""

    def usage(self, usages: list[Usage]) -> bytes:
        """The chunk of usage, or nothing if it was not asked for."""


class _Encoder:
    """What the chunks of one stream have in common."""

    kind: str

    def __init__(self, answer_id: str, created: int, model: str, include_usage: bool) -> None:
        fields = {"id": answer_id, "object": self.kind, "created": created, "model": model}
        self._head = b"data: " + _encode(fields)[:-1] + b',"choices":'
        self._include_usage = include_usage
        self._tail = b',"usage":null}\n\n' if include_usage else b"}\n\n"

    def usage(self, usages: list[Usage]) -> bytes:
        """See :class:`Chunks`."""
        if not self._include_usage:
            return b""
        return b'%b[],"usage":%b}\n\n' % (self._head, _encode(usage_object(usages)))


class ChatChunks(_Encoder):
    """Chunks of ``chat.completion.chunk``: first the role, then text, last the finish reason."""

    kind = "chat.completion.chunk"

    def first(self, index: int) -> bytes:
        """The role."""
        delta = b'{"role":"assistant","content":"","refusal":null}'
        return self._choice(index, delta, b"null")

    def update(self, index: int, update: Update) -> bytes:
        """The text, and the finish reason in a chunk of its own."""
        data = b""
        if update.text:
            data = self._choice(index, b'{"content":%b}' % _encode(update.text), b"null")
        if update.finish_reason is not None:
            data += self._choice(index, b"{}", _encode(update.finish_reason))
        return data

    def _choice(self, index: int, delta: bytes, finish: bytes) -> bytes:
        return b'%b[{"index":%d,"delta":%b,"logprobs":null,"finish_reason":%b}]%b' % (
            self._head,
            index,
            delta,
            finish,
            self._tail,
        )


class CompletionChunks(_Encoder):
    """Chunks of ``text_completion``: text, the last with the finish reason."""

    kind = "text_completion"

    def first(self, index: int) -> bytes:
        """Nothing: there is no role."""
        return b""

    def update(self, index: int, update: Update) -> bytes:
        """The text and the finish reason in one chunk."""
        if not update.text and update.finish_reason is None:
            return b""
        return b'%b[{"index":%d,"text":%b,"logprobs":null,"finish_reason":%b}]%b' % (
            self._head,
            index,
            _encode(update.text),
            _encode(update.finish_reason),
            self._tail,
        )


def _error(error: PyengineError) -> bytes:
    return b"data: %b\n\n" % error_body(error)


async def stream(exchange: "Exchange", generations: list[Generation], chunks: Chunks) -> None:
    """Answer with the updates of ``generations`` as they come.

    The answer begins with the first update, so that a request that fails before has a status of its
    own. What fails later is told inside of the stream, which then ends without ``[DONE]``.

    Raises:
        PyengineError: Before the answer began.
        RSGIProtocolClosed: The client left.
    """
    usages: list[Usage | None] = [None] * len(generations)
    begun = [False] * len(generations)
    transport = sending = None
    timeline = exchange.service.engine.timeline
    try:
        async with contextlib.aclosing(_batches(generations)) as batches:
            async for batch in batches:
                timeline.begin()
                data = b""
                for index, update in batch:
                    if not begun[index]:
                        begun[index] = True
                        data += chunks.first(index)
                    data += chunks.update(index, update)
                    usages[index] = update.usage
                timeline.lap(Stage.SSE_ENCODE)
                if transport is None:
                    exchange.began = True
                    transport = exchange.proto.response_stream(200, _headers(exchange))
                if data:
                    # The work is in the call; what is awaited is the client.
                    sending = transport.send_bytes(data)
                    timeline.lap(Stage.SOCKET_WRITE)
                    await sending
    except ProtocolClosed:
        raise
    except PyengineError as error:
        if transport is None:
            raise
        await transport.send_bytes(_error(exchange.explain(error)))
        return
    except Exception:
        if transport is not None:
            await transport.send_bytes(_error(internal_error()))
        raise
    else:
        if transport is not None:
            counted = [usage for usage in usages if usage is not None]
            await transport.send_bytes(chunks.usage(counted) + DONE)
    finally:
        # granian ends the answer when nobody holds its transport any more; a traceback that is
        # kept somewhere would.
        transport = sending = None


def _headers(exchange: "Exchange") -> list[tuple[str, str]]:
    return [
        ("content-type", "text/event-stream; charset=utf-8"),
        ("cache-control", "no-cache"),
        ("x-accel-buffering", "no"),  # nginx would hold chunks back
        ("x-request-id", exchange.request_id),
    ]


async def _batches(
    generations: list[Generation],
) -> AsyncGenerator[Sequence[tuple[int, Update]], None]:
    """The updates of all generations, each batch everything that has come since the last one."""
    if len(generations) == 1:
        async for update in generations[0]:
            yield ((0, update),)
        return
    ready: list[tuple[int, Update]] = []
    more = asyncio.Event()

    async def pump(index: int, generation: Generation) -> None:
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

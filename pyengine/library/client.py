"""Requests of the process to its own endpoints, and their answers as objects."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any, Generic, Self, TypeVar

import msgspec

from pyengine.errors import RequestAbortedError
from pyengine.http.app import App
from pyengine.http.exchange import Exchange
from pyengine.http.local import LocalProtocol, written

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode


class StreamProtocol(LocalProtocol):
    """A connection whose answer is read as it is written."""

    def __init__(self, body: bytes) -> None:
        super().__init__(body)
        self.parts: asyncio.Queue[bytes | None] = asyncio.Queue()

    def send_bytes(self, data: bytes) -> asyncio.Future[None]:
        """Add a part of the answer."""
        self.parts.put_nowait(data)
        return written()


class AsyncStream(Generic[T]):
    """An answer chunk by chunk: ``async for chunk in stream``.

    Leaving its block, :meth:`close` and dropping it abort the request. One task at a time.
    """

    def __init__(self, app: App, path: str, body: bytes, kind: type[T]) -> None:
        """Begin the request, whose chunks are of ``kind``."""
        self._protocol = StreamProtocol(body)
        self._decode = msgspec.json.Decoder(kind).decode
        self._work = asyncio.create_task(_served(app, path, self._protocol))
        self._rest = b""
        self._ready: list[T] = []

    async def begun(self) -> Self:
        """The stream, once something of the answer is there.

        Raises:
            PyengineError: The request was refused, or failed.
        """
        with contextlib.suppress(StopAsyncIteration):
            await self._more()
        return self

    def __aiter__(self) -> AsyncIterator[T]:
        return self

    async def __anext__(self) -> T:
        await self._more()
        return self._ready.pop(0)

    async def _more(self) -> None:
        while not self._ready:
            part = await self._protocol.parts.get()
            if part is None:
                self._protocol.parts.put_nowait(None)  # for a reader that asks once more
                await asyncio.wait([self._work])
                if self._work.cancelled():
                    raise RequestAbortedError("the request was aborted")
                if (error := self._work.result().error) is not None:
                    raise error
                raise StopAsyncIteration
            *events, self._rest = (self._rest + part).split(b"\n\n")
            for event in events:
                data = event.partition(b"data: ")[2]
                # A comment has no data; an error is raised at the end, as it is.
                if data and data != b"[DONE]" and not data.startswith(b'{"error":'):
                    self._ready.append(self._decode(data))

    async def close(self) -> None:
        """Abort what is left of it. Idempotent."""
        self._work.cancel()
        await asyncio.gather(self._work, return_exceptions=True)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def __del__(self) -> None:
        loop = self._work.get_loop()
        if not self._work.done() and not loop.is_closed():
            loop.call_soon_threadsafe(self._work.cancel)


async def _served(app: App, path: str, protocol: StreamProtocol) -> Exchange:
    """The exchange, once it is over. Does not know its stream, which may be dropped."""
    try:
        return await app.local(path, protocol)
    finally:
        protocol.parts.put_nowait(None)


class LocalClient:
    """Asks the endpoints of an :class:`App`. Lives on the loop of its engine."""

    def __init__(self, app: App) -> None:
        self._app = app

    async def close(self) -> None:
        """Close the store of answers."""
        await self._app.store.close()

    async def create(
        self, path: str, fields: dict[str, Any], kind: type[T], chunks: type[Any]
    ) -> T | AsyncStream[Any]:
        """The answer to a request with these fields, or with ``stream`` its chunks.

        Args:
            path: The endpoint's.
            fields: The fields of the body; those in ``extra_body`` are part of it.
            kind: The type of a whole answer.
            chunks: The type of a chunk.

        Raises:
            PyengineError: As the endpoint answers with.
        """
        extra = fields.pop("extra_body", None) or {}
        body = _encode({**fields, **extra})
        if fields.get("stream"):
            return await AsyncStream(self._app, path, body, chunks).begun()
        protocol = LocalProtocol(body)
        exchange = await self._app.local(path, protocol)
        if exchange.error is not None:
            raise exchange.error
        return msgspec.json.decode(protocol.answer, type=kind)

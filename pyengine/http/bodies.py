"""The reading of bodies, within the limits of each and the room for all."""

import asyncio
import ctypes
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from pyengine.errors import InvalidRequestError, OverloadedError, PayloadTooLargeError
from pyengine.http.errors import BodyTimeoutError, UnsupportedMediaError
from pyengine.http.limits import Limits
from pyengine.http.rsgi import Headers, HTTPProtocol, ProtocolError

# A body that is announced to be no longer is read at once, and needs no room.
SMALL = 64 << 10
# The allocator keeps the memory of bodies; from this many bytes on it is asked to give it back.
_LARGE = 8 << 20


class BodyRoom:
    """The room for the bodies that one process reads at once. Lives on the serving loop.

    Bytes count when they have come, so that a client that only announces a body takes no room.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._taken = 0

    def take(self, size: int) -> None:
        """Count bytes that have come.

        Raises:
            OverloadedError: There is no room for them.
        """
        if self._taken + size > self._most:
            raise OverloadedError("too many large bodies are being read; try again in a moment")
        self._taken += size

    def give_back(self, size: int) -> None:
        """Count bytes no more."""
        self._taken -= size
        if size >= _LARGE and hasattr(_C_LIBRARY, "malloc_trim"):
            # On a thread: it takes milliseconds, without the GIL.
            asyncio.get_running_loop().run_in_executor(None, _C_LIBRARY.malloc_trim, 0)


_C_LIBRARY = ctypes.CDLL(None)


@asynccontextmanager
async def body_of(
    proto: HTTPProtocol, headers: Headers, limits: Limits, room: BodyRoom
) -> AsyncIterator[bytes]:
    """The whole body of a request, which has its room as long as the context lasts.

    Raises:
        PayloadTooLargeError: It is longer than the limit; no more than a chunk of it was in memory.
        OverloadedError: There is no room for it.
        BodyTimeoutError: It did not come in time.
        UnsupportedMediaError: It is compressed.
        InvalidRequestError: Its chunks are malformed.
        RSGIProtocolClosed: The client left meanwhile.
    """
    reading = _Reading(proto, limits, room)
    try:
        yield await _read(proto, headers, limits, reading)
    finally:
        room.give_back(reading.taken)


async def _read(
    proto: HTTPProtocol, headers: Headers, limits: Limits, reading: "_Reading"
) -> bytes:
    if (coding := headers.get("content-encoding", "identity")) != "identity":
        raise UnsupportedMediaError(f"A body in content-encoding '{coding}' is not supported.")
    announced = headers.get("content-length")
    length = int(announced) if announced is not None and announced.isdecimal() else None
    too_large = length is not None and length > limits.body_bytes
    if too_large and headers.get("expect") is not None:
        raise _too_large(limits)  # the client waits for "100 Continue" and has sent nothing
    small = length is not None and length <= min(SMALL, limits.body_bytes)
    try:
        async with asyncio.timeout(limits.body_seconds):
            body = bytes(await proto()) if small else await reading.chunks()
        if length not in (None, len(body)):
            raise InvalidRequestError("The body ended before its Content-Length.")
        return body
    except ProtocolError:
        raise InvalidRequestError("The body's transfer encoding is malformed.") from None
    except TimeoutError:
        if too_large:
            raise _too_large(limits) from None
        raise BodyTimeoutError(
            f"The body did not come within {limits.body_seconds:g} seconds."
        ) from None


async def discard_body(proto: HTTPProtocol, headers: Headers, limits: Limits) -> bool:
    """Reads the body of a request that is refused, and throws it away.

    The HTTP library closes a connection whose body was not read, without a word: the client's next
    request on it would fail.

    Returns:
        Whether all of it came; if not, the connection must be closed.
    """
    length = headers.get("content-length", "0")
    if length == "0" and "transfer-encoding" not in headers:
        return True
    waits = headers.get("expect") is not None  # for "100 Continue", and has sent nothing
    if waits or (length.isdecimal() and int(length) > limits.discard_bytes):
        return False
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            async for chunk in proto:
                size += len(chunk)
                if size > limits.discard_bytes:
                    return False
    except (ProtocolError, TimeoutError):
        return False
    return True


class _Reading:
    """A body that is read chunk by chunk.

    Attributes:
        taken: The room that it has.
    """

    def __init__(self, proto: HTTPProtocol, limits: Limits, room: BodyRoom) -> None:
        self._proto = proto
        self._limits = limits
        self._room = room
        self.taken = 0

    async def chunks(self) -> bytes:
        """The whole body; of one that is too long, or has no room, nothing is kept."""
        body = bytearray()
        size = 0
        refusal: PayloadTooLargeError | OverloadedError | None = None
        async for chunk in self._proto:
            size += len(chunk)
            if size > self._limits.body_bytes:
                refusal = _too_large(self._limits)
            if refusal is None:
                try:
                    self._room.take(len(chunk))
                except OverloadedError as full:
                    refusal = full
                else:
                    self.taken += len(chunk)
                    body += chunk
                    continue
            body.clear()
            self._room.give_back(self.taken)
            self.taken = 0
            if size > self._limits.discard_bytes:
                break
        if refusal is not None:
            raise refusal
        return bytes(body)


def _too_large(limits: Limits) -> PayloadTooLargeError:
    return PayloadTooLargeError(f"The body is longer than the limit of {limits.body_bytes} bytes.")

"""Requests that come from within the process: lines of batches, answered by the same endpoints."""

import asyncio
from collections.abc import AsyncIterator


def written() -> asyncio.Future[None]:
    """What a write gives that waits for no client."""
    done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    done.set_result(None)
    return done


class LocalHeaders(dict[str, str]):
    """The headers of a request, by their names in small letters."""


class LocalScope:
    """The head of a request, as RSGI has it."""

    proto = "http"
    scheme = "http"
    http_version = "1.1"
    query_string = ""
    authority: str | None = None
    client = server = ""

    def __init__(self, method: str, path: str) -> None:
        self.method = method
        self.path = path
        self.headers = LocalHeaders({"content-type": "application/json"})


class LocalProtocol:
    """The connection of a request, as RSGI has it: a body that is there, an answer that is kept.

    Attributes:
        status: The status of the answer; 0 until it comes.
        answer: Its body.
    """

    def __init__(self, body: bytes) -> None:
        self.status = 0
        self.answer = b""
        self._body = body

    async def __call__(self) -> bytes:
        """The whole body."""
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it comes: at once."""
        yield self._body

    async def client_disconnect(self) -> None:
        """Wait until the client has left; here the task that waits for the answer is cancelled."""
        await asyncio.Event().wait()

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer."""
        self.status, self.answer = status, body

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> "LocalProtocol":
        """Begin an answer in parts."""
        self.status = status
        return self

    def send_bytes(self, data: bytes) -> asyncio.Future[None]:
        """Add a part of the answer."""
        self.answer += data
        return written()

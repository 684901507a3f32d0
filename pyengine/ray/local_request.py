"""A request to the HTTP application from within the process, as granian would hand it one."""

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from pyengine.http.app import App
from pyengine.http.rsgi import Scope

Head = tuple[int, list[tuple[str, str]]]


@dataclass(frozen=True)
class Call:
    """A request on its way between processes.

    Attributes:
        method: GET, POST or HEAD.
        path: Without a query.
        headers: By their names in lower case.
        body: The whole body.
        prompt: The text that a router compares with those of other requests.
    """

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    prompt: str


@dataclass(frozen=True)
class _Scope:
    method: str
    path: str
    headers: Mapping[str, str]
    proto: str = "http"
    query_string: str = ""
    scheme: str = "http"
    http_version: str = "1.1"
    authority: str | None = None


class _Protocol:
    """One request's body and answer, by RSGI's names; pieces of the answer go into a queue."""

    def __init__(self, body: bytes) -> None:
        self.pieces: asyncio.Queue[Head | bytes | None] = asyncio.Queue(maxsize=64)
        self.gone: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._body = body

    async def __call__(self) -> bytes:
        return self._body

    async def __aiter__(self) -> AsyncIterator[bytes]:
        yield self._body

    def client_disconnect(self) -> "asyncio.Future[None]":
        """Resolved when the caller has left."""
        return self.gone

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """The whole answer."""
        self.pieces.put_nowait((status, headers))
        self.pieces.put_nowait(body)

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> "_Protocol":
        """The head of an answer; its pieces follow by :meth:`send_bytes`."""
        self.pieces.put_nowait((status, headers))
        return self

    async def send_bytes(self, data: bytes) -> None:
        """A piece of the answer; waits while the caller is behind."""
        await self.pieces.put(data)


async def answer(app: App, call: Call) -> AsyncIterator[Head | bytes]:
    """Status and headers of the answer, then its pieces. Leaving it aborts the request."""
    proto = _Protocol(call.body)

    async def serve() -> None:
        await app.__rsgi__(cast("Scope", _Scope(call.method, call.path, call.headers)), proto)
        await proto.pieces.put(None)

    serving = asyncio.create_task(serve())
    try:
        while (piece := await proto.pieces.get()) is not None:
            yield piece
    finally:
        if not proto.gone.done():
            proto.gone.set_result(None)
        if not serving.done():
            while not proto.pieces.empty():
                proto.pieces.get_nowait()
            serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)


def text_of(body: Any) -> str:
    """The text of a decoded request that stands first in its prompt, for a router by prefix."""
    if not isinstance(body, dict):
        return ""
    for field in ("messages", "prompt", "input"):
        if field in body:
            given = body[field]
            return given if isinstance(given, str) else str(given)
    return ""

"""A request on its way from the ingress to an engine in another process, and its answer's way back.

::

    Starlette's request ──► Call ──► ASGI application ──► ASGI messages ──► Starlette's response
    (the ingress)                    (the replica)                         (the ingress)
"""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import msgspec

from pyengine.http.asgi import AsgiApp, ASGIScope, Message

_SCOPE = ("type", "method", "path", "root_path", "query_string", "headers", "scheme")
"""What the endpoint reads of a scope; the rest cannot go to another process."""


@dataclass(frozen=True)
class Call:
    """A request.

    Attributes:
        scope: The ASGI scope.
        body: The whole body.
        prompt: The text that Ray's request router compares with those of other requests; it
            divides by its length.
    """

    scope: dict[str, Any]
    body: bytes
    prompt: str

    @classmethod
    def of(cls, scope: ASGIScope, body: bytes) -> "Call":
        """The request of a scope and its body."""
        prompt = prompt_of(body) or scope["path"]
        return cls({name: scope[name] for name in _SCOPE}, body, prompt)


def prompt_of(body: bytes) -> str:
    """The text of a request that stands first in its prompt; empty if it has none."""
    try:
        fields = msgspec.json.decode(body)
    except (ValueError, RecursionError):
        return ""  # the engine says what is wrong with it
    if not isinstance(fields, dict):
        return ""
    names = ("instructions", "messages", "prompt", "input")
    return "".join(_text(fields[name]) for name in names if fields.get(name))


def _text(value: object) -> str:
    return value if isinstance(value, str) else str(value)


async def answered(app: AsgiApp, call: Call) -> AsyncIterator[Message]:
    """The messages of the answer. To leave it is to disconnect, which aborts the request."""
    messages: asyncio.Queue[Message | None] = asyncio.Queue()
    left = asyncio.Event()
    unread = [{"type": "http.request", "body": call.body, "more_body": False}]

    async def receive() -> Message:
        if unread:
            return unread.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    async def serve() -> None:
        try:
            await app(call.scope, receive, messages.put)
        finally:
            messages.put_nowait(None)

    serving = asyncio.create_task(serve())
    try:
        while (message := await messages.get()) is not None:
            yield message
    finally:
        left.set()
        await serving

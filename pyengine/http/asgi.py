"""The endpoint as an ASGI application, to be mounted in a FastAPI or Starlette service.

::

    server (uvicorn, ...) ── scope, receive, send ──► _Scope, _Protocol ──► App.__rsgi__

The endpoint is written to granian's interface, RSGI. A request's scope and connection are given
to it in that shape; nothing else differs.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from typing import Any

from pyengine.async_engine import AsyncEngine
from pyengine.http.app import App
from pyengine.http.rsgi import ProtocolClosed

ASGIScope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class AsgiApp:
    """The endpoint over an engine. Made by :func:`asgi_app`; called on the loop that serves.

    Attributes:
        app: The endpoint.
    """

    def __init__(self, engine: AsyncEngine, **options: Any) -> None:
        self.app = App(engine, **options)
        self._engine = engine

    async def __call__(self, scope: ASGIScope, receive: Receive, send: Send) -> None:
        """Serve one request, or the server's whole life where this is its application."""
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif scope["type"] == "http":
            await _serve(self.app, scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1000})

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        """Start the engine, unless the service has, and close it again in that case."""
        own = not self._engine.ready
        await receive()
        try:
            if own:
                await self._engine.start()
        except Exception as error:  # noqa: BLE001 - the server ends, and prints the message
            await send({"type": "lifespan.startup.failed", "message": str(error)})
            return
        self.app.start()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self.app.drain(self.app.limits.drain_seconds)
        await self.app.close()
        if own:
            await self._engine.close()
        await send({"type": "lifespan.shutdown.complete"})


def asgi_app(engine: AsyncEngine, **options: Any) -> AsgiApp:
    """The endpoint over ``engine`` as an ASGI application::

        engine = pyengine.AsyncEngine()

        @asynccontextmanager
        async def lifespan(app):
            async with engine:
                yield

        app = FastAPI(lifespan=lifespan)
        app.mount("/llm", pyengine.asgi_app(engine))

    A mounted application gets no lifespan events: start and close the engine as above. An
    application that is served by itself (``uvicorn service:llm``) starts and closes it.

    Args:
        engine: Belongs to the loop that serves.
        options: Options of :class:`pyengine.http.app.App`, such as ``limits``.
    """
    return AsgiApp(engine, **options)


class _Headers:
    """A request's headers, as RSGI has them."""

    def __init__(self, pairs: list[tuple[bytes, bytes]]) -> None:
        self._values: dict[str, str] = {}
        for name, value in pairs:
            self._values.setdefault(name.decode("latin-1").lower(), value.decode("latin-1"))

    def get(self, name: str, default: str | None = None) -> str | None:
        return self._values.get(name, default)

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> str:
        return self._values[name]

    def keys(self) -> list[str]:
        return list(self._values)

    def items(self) -> list[tuple[str, str]]:
        return list(self._values.items())


class _Scope:
    """A request's scope, as RSGI has it; the path is that below the mount."""

    proto = "http"

    def __init__(self, scope: ASGIScope) -> None:
        self.method: str = scope["method"]
        root = scope.get("root_path", "").rstrip("/")
        path: str = scope["path"]
        self.path = (path[len(root) :] if root and path.startswith(root) else path) or "/"
        self.query_string = scope.get("query_string", b"").decode("latin-1")
        self.scheme: str = scope.get("scheme", "http")
        self.http_version: str = scope.get("http_version", "1.1")
        self.headers = _Headers(list(scope["headers"]))
        self.authority: str | None = None
        client, server = scope.get("client"), scope.get("server")
        self.client = ":".join(map(str, client)) if client else ""
        self.server = ":".join(map(str, server)) if server else ""


class _Protocol:
    """A request's connection, as RSGI has it: what is written goes out in its order."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self._read = False  # the whole body
        self._gone = False
        self._outbox: asyncio.Queue[tuple[Message, asyncio.Future[None]] | None] = asyncio.Queue()
        self._streaming = False

    async def __call__(self) -> bytes:
        """The whole body."""
        return b"".join([chunk async for chunk in self])

    async def __aiter__(self) -> AsyncIterator[bytes]:
        """The body as it comes."""
        while not self._read:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                self._gone = True
                raise ProtocolClosed
            self._read = not message.get("more_body", False)
            yield message.get("body", b"")

    async def client_disconnect(self) -> None:
        """Wait until the client has left."""
        while not self._gone:
            self._gone = (await self._receive())["type"] == "http.disconnect"

    def response_bytes(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
        """Answer."""
        self.write(_start(status, [*headers, ("content-length", str(len(body)))]))
        self.write({"type": "http.response.body", "body": body})

    def response_stream(self, status: int, headers: list[tuple[str, str]]) -> "_Transport":
        """Begin an answer in parts, which ends with the request's handling."""
        self._streaming = True
        self.write(_start(status, headers))
        return _Transport(self)

    def write(self, message: Message) -> asyncio.Future[None]:
        """Hand over a message; the future is done when it is sent.

        Raises:
            RSGIProtocolClosed: The client has left.
        """
        if self._gone:
            raise ProtocolClosed
        sent: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._outbox.put_nowait((message, sent))
        return sent

    def finish(self) -> None:
        """End the answer."""
        if self._streaming and not self._gone:
            self.write({"type": "http.response.body", "body": b""})
        self._outbox.put_nowait(None)

    async def pump(self) -> None:
        """Send what is written until the answer has ended."""
        while (entry := await self._outbox.get()) is not None:
            message, sent = entry
            try:
                if not self._gone:
                    await self._send(message)
            except OSError:  # the connection is broken
                self._gone = True
            if not sent.done():
                sent.set_result(None)


class _Transport:
    """A streamed answer."""

    def __init__(self, protocol: _Protocol) -> None:
        self._protocol = protocol

    def send_bytes(self, data: bytes) -> asyncio.Future[None]:
        """Write a part; the future is done when the server has taken it."""
        return self._protocol.write({"type": "http.response.body", "body": data, "more_body": True})


async def _serve(app: App, scope: ASGIScope, receive: Receive, send: Send) -> None:
    protocol = _Protocol(receive, send)
    pump = asyncio.create_task(protocol.pump())
    try:
        given: Any = _Scope(scope)
        await app.__rsgi__(given, protocol)
        protocol.finish()
        await pump
    finally:
        pump.cancel()


def _start(status: int, headers: list[tuple[str, str]]) -> Message:
    encoded = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
    return {"type": "http.response.start", "status": status, "headers": encoded}

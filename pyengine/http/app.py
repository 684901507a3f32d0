"""The endpoint as a granian RSGI application: routes, request ids, errors, and who is being served.

Everything here runs on the asyncio loop that serves. A new endpoint is a file of its own and one
line in ``ROUTES``.
"""

import asyncio
import logging
import os
import re
from collections.abc import Awaitable, Callable
from itertools import count
from typing import Any, TypeVar

import msgspec

from pyengine._core import Stage
from pyengine.errors import (
    EngineDeadError,
    ModelNotFoundError,
    NotReadyError,
    PyengineError,
    RequestAbortedError,
)
from pyengine.http import chat_completions, completions, debug, health, metrics, models
from pyengine.http.backend import Engine, Generation
from pyengine.http.errors import (
    MethodNotAllowedError,
    NoSuchPathError,
    ShuttingDownError,
    decode_error,
    error_body,
    internal_error,
)
from pyengine.http.limits import Limits, read_body
from pyengine.http.rsgi import HTTPProtocol, ProtocolClosed, Scope
from pyengine.http.tracing import Asked, Tracing

log = logging.getLogger("pyengine.http")

T = TypeVar("T")
Handler = Callable[["Exchange"], Awaitable[None]]

ROUTES: dict[str, dict[str, Handler]] = {
    "/v1/chat/completions": {"POST": chat_completions.create},
    "/v1/completions": {"POST": completions.create},
    "/v1/models": {"GET": models.list_all},
    "/health": {"GET": health.health},
    "/ready": {"GET": health.ready},
    "/debug/profile": {"GET": debug.profile},
    "/metrics": {"GET": metrics.metrics},
}
# Paths that go on with a parameter.
PREFIXES: tuple[tuple[str, dict[str, Handler]], ...] = (("/v1/models/", {"GET": models.retrieve}),)

_REQUEST_ID = re.compile(r"[!-~]{1,128}")


class Exchange:
    """One request and its answer, from the first header to the last byte.

    Attributes:
        parameter: What stands behind a prefix of ``PREFIXES``.
        request_id: The client's ``x-request-id``, or a new one.
        began: Whether the answer has begun, so that an error can no more get a status of its own.
    """

    __slots__ = (
        "_asked", "_generations", "_watch", "app", "began", "cut_off", "parameter", "proto",
        "request_id", "scope",
    )  # fmt: skip

    def __init__(self, app: "App", scope: Scope, proto: HTTPProtocol) -> None:
        self.app = app
        self.scope = scope
        self.proto = proto
        self.parameter = ""
        self.began = False
        self.cut_off = False
        given = scope.headers.get("x-request-id")
        valid = given is not None and _REQUEST_ID.fullmatch(given)
        self.request_id: str = given if valid else app.new_id("req-")
        self._generations: list[Generation] = []
        self._asked: Asked | None = None
        self._watch: asyncio.Future[None] | None = None

    async def decode(self, decoder: msgspec.json.Decoder[T]) -> T:
        """The body, as the decoder's type.

        Raises:
            InvalidRequestError: It is not that, naming the field.
            PayloadTooLargeError: It is too long.
        """
        body = await read_body(self.proto, self.scope.headers, self.app.limits)
        timeline = self.app.engine.timeline
        timeline.begin()
        try:
            request = decoder.decode(body)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise decode_error(error) from None
        timeline.lap(Stage.HTTP_DECODE)
        return request

    def watch(self, generations: list[Generation], asked: Asked) -> None:
        """Abort ``generations`` when the client leaves, the answer fails or the server stops.

        Where requests are traced, they are as ``asked``.
        """
        self._generations = generations
        self._asked = asked
        self._watch = asyncio.ensure_future(self.proto.client_disconnect())
        self._watch.add_done_callback(self._client_left)

    def _client_left(self, watch: asyncio.Future[None]) -> None:
        if not watch.cancelled():
            watch.exception()  # has been seen: the connection is gone either way
            self.abort()

    def abort(self) -> None:
        """Abort whatever is generated for this exchange."""
        for generation in self._generations:
            generation.abort()

    def end(self) -> None:
        """Nothing is generated for this exchange any more."""
        if self._watch is not None:
            self._watch.cancel()
        self._trace()
        self.abort()

    def _trace(self) -> None:
        tracing = self.app.tracing
        if tracing is None or self._asked is None:
            return
        model, headers = self.app.engine.model_name, self.scope.headers
        for generation in self._generations:
            tracing.record(headers, model, self.request_id, self._asked, generation.outcome)

    def reply(
        self,
        body: bytes,
        status: int = 200,
        *headers: tuple[str, str],
        content_type: str = "application/json",
    ) -> None:
        """Answer, in JSON unless ``content_type`` says otherwise."""
        self.began = True
        timeline = self.app.engine.timeline
        timeline.begin()
        fixed = [("content-type", content_type), ("x-request-id", self.request_id)]
        self.proto.response_bytes(status, [*fixed, *headers], body)
        timeline.lap(Stage.SOCKET_WRITE)

    def fail(self, error: PyengineError) -> None:
        """Answer with an error, unless an answer has begun."""
        if self.began:
            return
        headers = []
        if error.retry_after is not None:
            headers.append(("retry-after", str(error.retry_after)))
        if isinstance(error, MethodNotAllowedError):
            headers.append(("allow", error.allow))
        if isinstance(error, ShuttingDownError):
            headers.append(("connection", "close"))
        self.reply(error_body(error), error.status, *headers)

    def explain(self, error: PyengineError) -> PyengineError:
        """``error``, as the client should see it: who was cut off at shutdown is told so."""
        if self.cut_off and isinstance(error, RequestAbortedError):
            return ShuttingDownError("The server is shutting down.")
        return error


class App:
    """The RSGI application. Called by granian on the serving loop.

    Attributes:
        engine: What generates.
        limits: What a client may ask of it.
        tracing: Makes spans of requests, if they are traced.
        draining: Whether new requests are refused, because the server is going to stop.
        idle: Set while no request is being served.
        watching: Held while somebody profiles the engine.
    """

    def __init__(
        self, engine: Engine, limits: Limits | None = None, tracing: Tracing | None = None
    ) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self.tracing = tracing
        self.draining = False
        self.watching = asyncio.Lock()
        self._active: set[Exchange] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._numbers = count(1)
        self._start = os.urandom(8).hex()

    async def __rsgi__(self, scope: Scope, proto: Any) -> None:
        """Serve one request; granian's entry."""
        if scope.proto != "http":
            return
        exchange = Exchange(self, scope, proto)
        self._active.add(exchange)
        self.idle.clear()
        try:
            await self._route(exchange)(exchange)
        except PyengineError as error:
            exchange.fail(exchange.explain(error))
        except ProtocolClosed:
            pass  # the client has left; end() frees what was generated for it
        except Exception:
            log.exception("%s %s failed (%s)", scope.method, scope.path, exchange.request_id)
            exchange.fail(internal_error())
        finally:
            exchange.end()
            self._active.discard(exchange)
            if not self._active:
                self.idle.set()

    def _route(self, exchange: Exchange) -> Handler:
        scope = exchange.scope
        methods = ROUTES.get(scope.path)
        if methods is None:
            for prefix, found in PREFIXES:
                if scope.path.startswith(prefix) and len(scope.path) > len(prefix):
                    methods, exchange.parameter = found, scope.path[len(prefix) :]
        if methods is None:
            raise NoSuchPathError(f"Unknown URL: {scope.method} {scope.path}")
        # The bodies of answers to HEAD are left out below, by the HTTP library.
        handler = methods.get("GET" if scope.method == "HEAD" else scope.method)
        if handler is None:
            allow = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            raise MethodNotAllowedError(
                f"{scope.path} takes {allow}, not {scope.method}.", allow=allow
            )
        return handler

    def new_id(self, prefix: str) -> str:
        """An id that no other answer has, not even one of another process."""
        return f"{prefix}{self._start}{next(self._numbers):08x}"

    def require_ready(self) -> Engine:
        """The engine, if it takes requests.

        Raises:
            ShuttingDownError, NotReadyError, EngineDeadError: It does not.
        """
        if self.draining:
            raise ShuttingDownError("The server is shutting down.")
        if self.engine.failure is not None:
            raise EngineDeadError("The engine has failed; the server's log knows why.")
        if not self.engine.ready:
            raise NotReadyError("The model is still being loaded; try again in a moment.")
        return self.engine

    def require_model(self, name: str) -> Engine:
        """The engine that serves the model ``name``.

        Raises:
            ModelNotFoundError: None does.
            PyengineError: As :meth:`require_ready`.
        """
        engine = self.require_ready()
        if name != engine.model_name:
            raise ModelNotFoundError(
                f"The model '{name[:100]}' does not exist; this server has '{engine.model_name}'.",
                param="model",
            )
        return engine

    @property
    def active(self) -> int:
        """Requests that are being served."""
        return len(self._active)

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and let the running ones finish, for at most ``seconds``.

        What runs after that is aborted, and its client told. Returns how many that were.
        """
        self.draining = True
        try:
            await asyncio.wait_for(self.idle.wait(), seconds)
        except TimeoutError:
            pass
        else:
            return 0
        rest = list(self._active)
        for exchange in rest:
            exchange.cut_off = True
            exchange.abort()
        try:
            # Telling the clients takes no longer than a write; one that does not read is left.
            await asyncio.wait_for(self.idle.wait(), 1.0)
        except TimeoutError:
            log.warning("%d clients did not take their last words", len(self._active))
        return len(rest)

"""The endpoint as a granian RSGI application: routes, errors, and the requests being served.

Everything here runs on the asyncio loop that serves. A new endpoint is a file of its own and one
line in ``operations/paths.py``; the API of others is an extension.
"""

from collections.abc import Callable
from typing import Any

from pyengine.errors import PyengineError
from pyengine.http.access.keys import ApiKey
from pyengine.http.admin.administration import Administration
from pyengine.http.admin.own_requests import OwnRequests
from pyengine.http.anthropic import answer as anthropic
from pyengine.http.batches.run import Means
from pyengine.http.batches.runner import BatchRunner
from pyengine.http.errors import MethodNotAllowedError, NoSuchPathError, error_body
from pyengine.http.exchange import Exchange
from pyengine.http.extensions import extensions
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.fields.table import table
from pyengine.http.limits import check_head
from pyengine.http.local import LocalProtocol, LocalScope
from pyengine.http.operations.operation import Handler
from pyengine.http.operations.paths import routes
from pyengine.http.rsgi import Scope
from pyengine.http.service import Service

# A batch has at most this part of the engine's sequences, whatever else there is to do.
_SHARE_OF_BATCHES = 4

# How errors look to the clients of others, by the beginning of their paths.
_ERROR_FORMS: dict[str, Callable[[PyengineError], bytes]] = {
    "/v1/messages": anthropic.error_body,
    "/messages": anthropic.error_body,
}


def _any_path(_: str) -> bool:
    return True


class App(Service):
    """The RSGI application. Called by granian on the serving loop.

    Attributes:
        own_requests: The requests of this process.
        administration: Reaches the requests of all processes.
    """

    def prepare(self) -> None:
        """Make what only the application has."""
        self.fields = FieldPolicy(table(), self.limits.unknown_fields)
        self.own_requests = OwnRequests(lambda: self.running.exchanges)
        self.administration: Administration = self.own_requests
        workers = max(1, self.engine.config.limits.max_sequences // _SHARE_OF_BATCHES)
        self.routes = routes()
        self._error_forms = dict(_ERROR_FORMS)
        for extension in extensions():
            self._error_forms.update(extension.error_forms)
        paths = tuple(self.routes.paths)
        means = Means(self.store, self.perform, self.door.admit, self.new_id, paths, workers)
        self.batches = BatchRunner(means, self.door)

    def start(self) -> None:
        """Go on with batches that an earlier process has begun."""
        self.batches.start()

    async def close(self) -> None:
        """Let go of batches and of the store. Idempotent."""
        await self.batches.stop()
        await self.store.close()

    async def __rsgi__(self, scope: Scope, proto: Any) -> None:
        """Serve one request; granian's entry."""
        await self.serve(scope, proto, _any_path)

    async def serve(self, scope: Scope, proto: Any, has: Callable[[str], bool]) -> None:
        """Serve one request, if ``has`` says that its path is served where it came in."""
        if scope.proto != "http":
            return
        exchange = self._exchange(scope, proto)
        await self.running.serve(exchange, self._serve(exchange, has))

    def _exchange(self, scope: Scope, proto: Any) -> Exchange:
        exchange = Exchange(self, scope, proto)
        known = self._error_forms.items()
        forms = (form for begin, form in known if exchange.path.startswith(begin))
        exchange.error_body = next(forms, error_body)
        return exchange

    async def _serve(self, exchange: Exchange, has: Callable[[str], bool]) -> None:
        try:
            await self._answer(exchange, has)
        except PyengineError:
            await exchange.leave_body()
            raise

    async def _answer(self, exchange: Exchange, has: Callable[[str], bool]) -> None:
        scope = exchange.scope
        check_head(scope, self.limits)
        exchange.cors = self.door.cors(scope)
        if (headers := self.door.preflight(scope)) is not None:
            exchange.reply(b"", 204, *headers)
            return
        if not has(exchange.path):
            raise NoSuchPathError(f"{exchange.path} is served at another port.")
        handler = self._route(exchange)
        exchange.key = self.door.enter(scope, exchange.path)
        await handler(exchange)

    async def perform(
        self, path: str, body: bytes, key: ApiKey | None = None, priority: int = 0
    ) -> tuple[int, bytes, str]:
        """Answer a request that comes from within the process, behind the door.

        Cancelling it aborts what is generated.

        Returns:
            The answer's status and body, and the request's id.
        """
        proto = LocalProtocol(body)
        exchange = await self.local(path, proto, key, priority)
        return proto.status, proto.answer, exchange.request_id

    async def local(
        self, path: str, proto: LocalProtocol, key: ApiKey | None = None, priority: int = 0
    ) -> Exchange:
        """As :meth:`perform`, with the connection that takes the answer; returns the exchange."""
        scope: Any = LocalScope("POST", path)
        connection: Any = proto
        exchange = self._exchange(scope, connection)
        exchange.key, exchange.priority = key, priority

        async def work() -> None:
            await self._route(exchange)(exchange)

        await self.running.serve(exchange, work())
        return exchange

    def _route(self, exchange: Exchange) -> Handler:
        """The handler of a path and method, under the path that OpenAI's clients use."""
        method, path = exchange.scope.method, exchange.path
        found = self.routes.find(path)
        if found is None:
            raise NoSuchPathError(f"Unknown URL: {method} {path[:200]}; {self.routes.meant(path)}")
        methods, exchange.parameters = found
        # The bodies of answers to HEAD are left out below, by the HTTP library.
        operation = methods.get("GET" if method == "HEAD" else method)
        if operation is None:
            allow = ", ".join([*methods, "HEAD"] if "GET" in methods else methods)
            raise MethodNotAllowedError(
                f"{path} takes {allow}, not {method}.", headers=(("allow", allow),)
            )
        return operation.handler

    @property
    def active(self) -> int:
        """Requests that are being served."""
        return len(self.running.exchanges)

    async def drain(self, seconds: float) -> int:
        """Refuse new requests and let the running ones finish, for at most ``seconds``.

        Requests that run after that are aborted, and their clients get an error. Returns their
        number.
        """
        self.draining = True
        await self.batches.stop()
        return await self.running.drain(seconds)

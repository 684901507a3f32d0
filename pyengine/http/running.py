"""The exchanges that are being served, and what is done for each: its errors and its end."""

import asyncio
import logging
from collections.abc import Awaitable, Coroutine
from typing import Generic, Protocol, TypeVar

from pyengine.errors import PyengineError
from pyengine.http.errors import InternalError
from pyengine.http.rsgi import ProtocolClosed, Scope

log = logging.getLogger("pyengine.http")


class Served(Protocol):
    """The part of an Exchange that is needed here; see there."""

    scope: Scope
    request_id: str
    cut_off: bool

    def explain(self, error: PyengineError) -> PyengineError:
        """The error, as the client should see it."""

    def fail(self, error: PyengineError) -> None:
        """Answer with an error, unless an answer has begun."""

    def abort(self) -> None:
        """Abort what is generated for it."""

    def end(self) -> None:
        """Free what still runs."""


E = TypeVar("E", bound=Served)


class Running(Generic[E]):
    """The exchanges of one process. Used on the serving loop.

    Attributes:
        exchanges: The exchanges that are being served.
        idle: Set while there is none.
    """

    def __init__(self) -> None:
        self.exchanges: set[E] = set()
        self.idle = asyncio.Event()
        self.idle.set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def serve(self, exchange: E, work: Awaitable[None]) -> None:
        """Do the work of an exchange; what it fails with is its answer."""
        self._enter(exchange)
        try:
            await work
        except PyengineError as error:
            exchange.fail(exchange.explain(error))
        except ProtocolClosed:
            pass  # the client has left; end() frees what was generated for it
        except (asyncio.CancelledError, KeyboardInterrupt, SystemExit):
            raise
        except BaseException:  # a panic in Rust is no Exception
            scope = exchange.scope
            log.exception("%s %s failed (%s)", scope.method, scope.path, exchange.request_id)
            exchange.fail(InternalError())
        finally:
            exchange.end()
            self.exchanges.discard(exchange)
            if not self.exchanges:
                self.idle.set()

    def spawn(self, exchange: E, work: Coroutine[None, None, None]) -> None:
        """Serve an exchange that no client waits for, in a task of its own."""
        self._enter(exchange)
        task = asyncio.create_task(self.serve(exchange, work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _enter(self, exchange: E) -> None:
        self.exchanges.add(exchange)
        self.idle.clear()

    async def drain(self, seconds: float) -> int:
        """Let all of them finish for at most ``seconds``, then abort the rest.

        Their clients get an error. Returns how many were aborted.
        """
        try:
            await asyncio.wait_for(self.idle.wait(), seconds)
        except TimeoutError:
            pass
        else:
            return 0
        rest = list(self.exchanges)
        for exchange in rest:
            exchange.cut_off = True
            exchange.abort()
        try:
            # An error takes no longer than a write; a client that does not read is left.
            await asyncio.wait_for(self.idle.wait(), 1.0)
        except TimeoutError:
            log.warning(
                "%d clients did not read the error that ends their answer", len(self.exchanges)
            )
        return len(rest)

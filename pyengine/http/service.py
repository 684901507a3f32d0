"""The state that all endpoints share: the engine, the limits, and whether requests are taken."""

import asyncio
import os
from itertools import count
from typing import TYPE_CHECKING, Any

from pyengine.async_engine import AsyncEngine
from pyengine.errors import (
    EngineDeadError,
    EngineUnresponsiveError,
    ModelNotFoundError,
    NotReadyError,
)
from pyengine.http.access.door import Door
from pyengine.http.bodies import BodyRoom
from pyengine.http.errors import ShuttingDownError
from pyengine.http.fields.policy import FieldPolicy
from pyengine.http.limits import Limits
from pyengine.http.operations.request_log import RequestLog
from pyengine.http.operations.tracing import Tracing
from pyengine.http.running import Running
from pyengine.http.store.store import Store

if TYPE_CHECKING:
    from pyengine.http.admin.administration import Administration
    from pyengine.http.batches.runner import BatchRunner
    from pyengine.http.routing import Routes


class Service:
    """The endpoint's state that its parts share. Used on the serving loop.

    Attributes:
        administration: Lists and aborts requests; the application's.
        batches: Runs batches; the application's.
        routes: Finds operations by their paths; the application's.
        engine: The engine that generates.
        limits: Bounds of requests.
        bodies: Room for the bodies that are being read.
        fields: What becomes of fields that requests may have beside the honoured ones.
        door: Lets requests in.
        request_log: Writes a line a request, if they are logged.
        store: What clients have asked to be kept.
        running: The requests that are being served.
        tracing: Makes spans of requests, if they are traced.
        draining: Whether new requests are refused, because the server is going to stop.
        watching: Held while a client profiles the engine.
    """

    administration: "Administration"
    batches: "BatchRunner"
    routes: "Routes"

    def __init__(
        self,
        engine: AsyncEngine,
        limits: Limits | None = None,
        tracing: Tracing | None = None,
        door: Door | None = None,
        request_log: RequestLog | None = None,
        store: Store | None = None,
    ) -> None:
        self.engine = engine
        self.limits = limits or Limits()
        self.bodies = BodyRoom(self.limits.bodies_bytes)
        self.fields = FieldPolicy({}, self.limits.unknown_fields)
        self.door = door or Door()
        self.request_log = request_log
        self.store = store or Store()
        self.running: Running[Any] = Running()
        self.tracing = tracing
        self.draining = False
        self.watching = asyncio.Lock()
        self._numbers = count(1)
        self._start = os.urandom(8).hex()
        self.prepare()

    def prepare(self) -> None:
        """Make what the service has beside this; nothing here."""

    def new_id(self, prefix: str) -> str:
        """An id that is unique among all answers, of other processes too."""
        return f"{prefix}{self._start}{next(self._numbers):08x}"

    def require_ready(self) -> AsyncEngine:
        """The engine, if it takes requests.

        Raises:
            ShuttingDownError, NotReadyError, EngineDeadError: It does not.
        """
        if self.draining:
            raise ShuttingDownError()
        if self.engine.failure is not None:
            raise EngineDeadError("The engine has failed; the server's log says why.")
        if not self.engine.ready:
            raise NotReadyError("The model is still being loaded; try again in a moment.")
        return self.engine

    def require_responsive(self) -> AsyncEngine:
        """The engine, if it takes requests and works on them.

        Raises:
            EngineUnresponsiveError: It does not work just now.
            PyengineError: As :meth:`require_ready`.
        """
        engine = self.require_ready()
        if (reason := engine.waits_for) is not None:
            raise EngineUnresponsiveError(f"Requests wait: {reason}.")
        return engine

    def find_model(self, name: str | None) -> tuple[AsyncEngine, str | None]:
        """The engine that serves the model ``name``, and the name of the adapter that it means.

        An adapter's name may have the model's before it (``model:adapter``). None is the model that
        there is.

        Raises:
            ModelNotFoundError: There is none of that name.
            PyengineError: As :meth:`require_ready`.
        """
        engine = self.require_ready()
        if name is None or name in engine.model_names:
            return engine, None
        base, _, last = name.rpartition(":")
        adapter = last if base in engine.model_names else name
        if adapter in engine.adapters:
            return engine, adapter
        names = " and ".join(f"'{each}'" for each in (*engine.model_names, *engine.adapters))
        raise ModelNotFoundError(
            f"The model '{name[:100]}' does not exist; this server has {names}.", param="model"
        )

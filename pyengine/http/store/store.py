"""The store: what clients have asked to be kept, found again by its id.

::

    endpoints ─► Store (the loop) ─► one thread ─► Database ─► memory, or a file

Objects are apart by their owner: the name of the API key that stored them, or none where no
keys are needed. Several processes may have the same file; what one writes all others read.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from types import MappingProxyType
from typing import TypeVar

import msgspec

from pyengine.http.errors import NoSuchObjectError, StoreOffError, StoreUnavailableError
from pyengine.http.store.clock import lease_until
from pyengine.http.store.database import Change, Database, Part, Row
from pyengine.settings.server import ServerConfig

T = TypeVar("T")
log = logging.getLogger("pyengine.http")

NOT_STORED = "'store': this server stores no answers."
"""Is told to who asks for a store where there is none."""

# How soon a process sees what another has written, where it waits for it.
_LOOK_S = 0.1
# How long a scrape of metrics waits for the store.
_USE_S = 0.5


class StoreLimits(msgspec.Struct, frozen=True, kw_only=True):
    """The store's place, and its bounds.

    Attributes:
        path: Its file; None is the memory of this process.
        most_bytes: The room for all objects; the oldest make room. 0 stores nothing.
        seconds: How long an object is kept.
    """

    path: str | None = None
    most_bytes: int = 256 << 20
    seconds: float = 30 * 24 * 3600.0

    @classmethod
    def of(cls, config: ServerConfig) -> "StoreLimits":
        """The limits that a configuration gives."""
        return cls(path=config.store, most_bytes=config.store_bytes, seconds=config.store_seconds)


class Page(msgspec.Struct, frozen=True):
    """Objects in their order, and whether there are more behind them."""

    rows: list[Row]
    more: bool


class StoreUse(msgspec.Struct, frozen=True):
    """The amount stored by all processes that share the file.

    Attributes:
        bytes: The bytes of objects and parts.
        objects: How many there are, by their kind.
    """

    bytes: int
    objects: dict[str, int]


class Store:
    """The objects of all clients. Lives on the serving loop; SQLite has a thread of its own.

    Every method raises StoreUnavailableError where SQLite cannot read or write.

    Attributes:
        limits: Where it is, and what it keeps.
    """

    def __init__(self, limits: StoreLimits | None = None) -> None:
        """Open the file, if it is one; memory is taken with the first object.

        Raises:
            ConfigError: It cannot be opened, or is none.
        """
        self.limits = limits or StoreLimits()
        self._thread = ThreadPoolExecutor(1, "pyengine-store")
        self._database: Database | None = None
        self._written = asyncio.Event()
        self._use = StoreUse(0, {})
        self._asking: asyncio.Task[None] | None = None
        if self.limits.path is not None and self.on:
            self._open()

    @property
    def on(self) -> bool:
        """Whether anything is stored."""
        return self.limits.most_bytes > 0

    def require(self) -> None:
        """Refuse what needs a store where there is none.

        Raises:
            StoreOffError: There is none.
        """
        if not self.on:
            raise StoreOffError(
                "This server stores nothing; `pyengine serve --store-bytes` gives the store room."
            )

    async def put(
        self,
        kind: str,
        owner: str,
        name: str,
        body: bytes,
        *parts: Part,
        seconds: float | None = None,
        lease: bool = False,
    ) -> None:
        """Add an object.

        Args:
            kind: Such as ``response``.
            owner: The object's owner.
            name: Its id.
            body: JSON.
            parts: What is read apart from the body.
            seconds: How long it is kept; None is as long as usual.
            lease: Whether this process goes on to work on it.

        Raises:
            StoreFullError: There is no room for it.
            StoreOffError: There is no store.
        """
        self.require()
        expires = time.time() + (self.limits.seconds if seconds is None else seconds)
        until = lease_until() if lease else 0.0
        row = (name, owner, body)
        await self.run(lambda data: data.put(kind, row, expires, until, list(parts)))

    async def get(self, kind: str, owner: str, name: str) -> Row:
        """The owner's object of that id.

        Raises:
            NoSuchObjectError: There is none.
            StoreOffError: There is no store.
        """
        self.require()
        row = await self.run(lambda data: data.get(kind, owner, name))
        if row is None:
            raise _no_such(kind, name)
        return row

    async def page(
        self,
        kind: str,
        owner: str,
        *,
        after: str | None,
        limit: int,
        descending: bool,
        labels: Mapping[str, str] = MappingProxyType({}),
    ) -> Page:
        """The owner's objects with all the ``labels``, in the order in which they were added.

        Labels are fields of a body: ``model``, ``purpose`` and ``metadata.NAME``.

        Raises:
            NoSuchObjectError: There is no object ``after``, behind which the page begins.
            StoreOffError: There is no store.
        """
        self.require()

        def read(data: Database) -> list[Row] | None:
            rows = data.page(kind, owner, after, labels, descending=descending)
            return None if rows is None else list(islice(rows, limit + 1))

        rows = await self.run(read)
        if rows is None:
            raise _no_such(kind, after or "")
        return Page(rows[:limit], len(rows) > limit)

    async def delete(self, kind: str, owner: str, name: str) -> None:
        """Remove the owner's object.

        Raises:
            NoSuchObjectError: There is none.
            StoreOffError: There is no store.
        """
        self.require()
        if not await self.run(lambda data: data.delete(kind, owner, name)):
            raise _no_such(kind, name)

    async def change(
        self,
        name: str,
        change: Change,
        *parts: Part,
        lease: bool | None = None,
        claim: int | None = None,
    ) -> bytes | None:
        """Give an object the body that ``change`` makes of it, and add parts, both or neither.

        Args:
            name: Its id.
            change: Called on the store's thread, while nothing else changes the object.
            parts: The parts to add.
            lease: Whether this process goes on to work on it; None leaves that as it is.
            claim: What this process's claim on it is; None: it needs none.

        Returns:
            Its body then; None: it is gone, or another process has claimed it.
        """
        until = None if lease is None else lease_until() if lease else 0.0
        body = await self.run(lambda data: data.change(name, change, until, parts, claim))
        self._written.set()
        self._written = asyncio.Event()
        return body

    async def parts(
        self, name: str, part: str, after: int = -1, limit: int = 1 << 62
    ) -> list[Part]:
        """The parts of that name whose numbers are over ``after``, by their order."""
        return await self.run(lambda data: data.parts(name, part, after, limit))

    async def numbers(self, name: str, part: str) -> set[int]:
        """The numbers of the parts of that name."""
        return await self.run(lambda data: data.numbers(name, part))

    async def claim(self, kind: str, wanted: Callable[[bytes], bool]) -> Row | None:
        """Take a lease on an unfinished object whose process has died; None: there is none."""
        return await self.run(lambda data: data.claim(kind, wanted))

    async def look(self) -> None:
        """Wait until objects have changed, or another process may have changed some."""
        written = self._written
        try:
            await asyncio.wait_for(written.wait(), _LOOK_S)
        except TimeoutError:
            return

    async def use(self) -> StoreUse:
        """How full it is, or was, where the store does not answer in time."""
        if self._database is not None and self._asking is None:
            self._asking = asyncio.create_task(self._ask())
        if self._asking is not None:
            await asyncio.wait({self._asking}, timeout=_USE_S)
        return self._use

    async def _ask(self) -> None:
        try:
            self._use = await self.run(lambda data: StoreUse(data.total, data.counts()))
        except StoreUnavailableError:
            pass  # logged
        finally:
            self._asking = None

    async def close(self) -> None:
        """Finish what is being written, and let go of the file. Idempotent."""
        await asyncio.to_thread(self._thread.shutdown)
        if self._database is not None:
            self._database.close()
            self._database = None

    def _open(self) -> Database:
        if self._database is None:
            self._database = Database(self.limits.path, self.limits.most_bytes)
        return self._database

    async def run(self, work: Callable[[Database], T]) -> T:
        """Do some work with the database, on its thread."""
        loop = asyncio.get_running_loop()
        import sqlite3

        try:
            return await loop.run_in_executor(self._thread, lambda: work(self._open()))
        except sqlite3.Error as error:
            log.error("the store: %s", error)
            raise StoreUnavailableError(f"The store cannot be used now: {error}.") from error


def _no_such(kind: str, name: str) -> NoSuchObjectError:
    return NoSuchObjectError(f"No {kind} with the id '{name[:100]}' is stored for this API key.")

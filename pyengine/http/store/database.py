"""The objects of a store, in SQLite; ``tables.py`` has the tables. Belongs to one thread at a time.

The process that works on an object has a lease on it until a time: it is not evicted until then,
and one that is still unfinished after that has lost its process.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from pyengine.errors import ConfigError
from pyengine.http.errors import StoreFullError
from pyengine.http.store.clock import Expiry, lease_bounds, lease_until
from pyengine.http.store.tables import VERSION, create_file, statements

if TYPE_CHECKING:
    import sqlite3

_BUSY_S = 30.0
_LABELLED = "SELECT number FROM labels WHERE owner = ? AND kind = ? AND name = ? AND value = ?"
_ADD_PART = "INSERT OR IGNORE INTO parts VALUES (?,?,?,?)"
# What a process has a lease on stays.
_EVICTABLE = "FROM objects WHERE owner = ? AND NOT lease BETWEEN ? AND ? AND id != ?"

CONTENT = "content"
"""The parts of a file."""

Change = Callable[[bytes], bytes | None]
"""A new body in the place of another; None leaves it."""


class Row(NamedTuple):
    """An object: its number grows with the order in which objects were added.

    ``claim`` counts the processes that have claimed it: one that has another number than the
    object's has lost it.
    """

    number: int
    id: str
    owner: str
    body: bytes
    lease: float
    claim: int


class Part(NamedTuple):
    """A part of an object."""

    name: str
    number: int
    data: bytes


class Database:
    """The objects and their parts. One that has expired is as none.

    Every method is one transaction, which other processes see whole or not at all.
    """

    def __init__(self, path: str | None, most_bytes: int) -> None:
        """Open the file at ``path``, or memory that no other process has.

        Raises:
            ConfigError: It cannot be opened, or is of another version or no store.
        """
        import sqlite3

        self._most_bytes, self._expiry = most_bytes, Expiry()
        if path is not None:
            create_file(Path(path))
        try:
            self._connection = sqlite3.connect(
                path or ":memory:",
                timeout=_BUSY_S,
                isolation_level=None,
                check_same_thread=False,
            )
            self._prepare()
        except sqlite3.Error as error:
            raise ConfigError(
                f"the store {path} cannot be opened: {error}", param="store"
            ) from None

    def _prepare(self) -> None:
        run = self._connection.execute
        run("PRAGMA foreign_keys = ON")
        run("PRAGMA journal_mode = WAL")
        run("PRAGMA synchronous = NORMAL")
        [(version,)] = run("PRAGMA user_version")
        if version not in (0, VERSION):
            raise ConfigError(
                f"the store is of version {version}, this is version {VERSION}; give another path",
                param="store",
            )
        with self._transaction():
            for statement in statements():
                run(statement)
            run(f"PRAGMA user_version = {VERSION}")

    @contextmanager
    def _transaction(self) -> Iterator["sqlite3.Connection"]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield self._connection
        except BaseException:
            self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    def put(
        self,
        kind: str,
        row: tuple[str, str, bytes],
        expires: float,
        lease: float,
        parts: list[Part],
    ) -> None:
        """Add an object: ``row`` is its id, owner and body. O(owners + log objects + evicted).

        The oldest objects of the owner that has most bytes make room.

        Raises:
            StoreFullError: It is larger than the room that can be made.
        """
        name, owner, body = row
        with self._transaction() as at:
            at.execute("DELETE FROM objects WHERE expires < ?", (self._expiry.horizon(),))
            at.execute(
                "INSERT INTO objects (id, kind, owner, body, expires, lease) VALUES (?,?,?,?,?,?)",
                (name, kind, owner, body, expires, lease),
            )
            at.executemany("INSERT INTO parts VALUES (?,?,?,?)", [(name, *part) for part in parts])
            self._make_room(name)

    def _make_room(self, newest: str) -> None:
        while (excess := self.total - self._most_bytes) > 0:
            if not self._evict(excess, newest):
                raise StoreFullError(
                    f"The store has room for {self._most_bytes} bytes, which this exceeds."
                )

    def _evict(self, excess: int, newest: str) -> bool:
        """Remove the oldest objects of the owner that has most bytes; whether there were any.

        They have ``excess`` bytes, or fewer where the owner then has no more than the next one.
        """
        run, held = self._connection.execute, lease_bounds()
        owners = run("SELECT owner, bytes FROM totals ORDER BY bytes DESC").fetchall()
        for (owner, its), (_, next_largest) in pairwise([*owners, ("", 0)]):
            left = min(excess, max(its - next_largest, excess // len(owners) + 1))
            last, given = None, (owner, *held, newest)
            for number, size in run(f"SELECT number, bytes {_EVICTABLE} ORDER BY number", given):
                last, left = number, left - size
                if left <= 0:
                    break
            if last is not None:
                run(f"DELETE {_EVICTABLE} AND number <= ?", (*given, last))
                return True
        return False

    @property
    def total(self) -> int:
        """The bytes of all objects and parts. O(owners)."""
        [(total,)] = self._connection.execute("SELECT coalesce(sum(bytes), 0) FROM totals")
        return int(total)

    def counts(self) -> dict[str, int]:
        """How many objects there are, by their kind; also of expired ones. O(1)."""
        return dict(self._connection.execute("SELECT kind, objects FROM kinds WHERE objects > 0"))

    def get(self, kind: str, owner: str, name: str) -> Row | None:
        """The owner's object of that id. O(log n)."""
        return next(self._rows("id = ? AND kind = ? AND owner = ?", (name, kind, owner)), None)

    def page(
        self,
        kind: str,
        owner: str,
        after: str | None,
        labels: Mapping[str, str] = MappingProxyType({}),
        *,
        descending: bool,
    ) -> Iterator[Row] | None:
        """The owner's objects by their order, behind that of the id ``after``; None: no such id.

        Where there are ``labels``, those that have them all; O(objects with one of them).
        """
        order, beyond = ("DESC", "<") if descending else ("ASC", ">")
        # A plus keeps SQLite from going through all of the owner's objects for those with a label.
        plus = "+" if labels else ""
        where, values = f"{plus}kind = ? AND {plus}owner = ?", [kind, owner]
        if after is not None:
            if (found := self.get(kind, owner, after)) is None:
                return None
            where = f"{where} AND number {beyond} {found.number}"
        for label in labels.items():
            where = f"{where} AND number IN ({_LABELLED})"
            values += [owner, kind, *label]
        return self._rows(where, tuple(values), f"ORDER BY number {order}")

    def _rows(self, where: str, values: tuple[Any, ...], rest: str = "") -> Iterator[Row]:
        sql = "SELECT number, id, owner, body, lease, claim FROM objects WHERE"
        rows = self._connection.execute(
            f"{sql} {where} AND expires >= ? {rest}", (*values, time.time())
        )
        return map(Row._make, rows)

    def delete(self, kind: str, owner: str, name: str) -> bool:
        """Remove the owner's object; whether there was one."""
        with self._transaction() as at:
            sql = "DELETE FROM objects WHERE id = ? AND kind = ? AND owner = ?"
            return at.execute(sql, (name, kind, owner)).rowcount > 0

    def change(
        self,
        name: str,
        change: Change,
        lease: float | None,
        parts: Sequence[Part] = (),
        claim: int | None = None,
    ) -> bytes | None:
        """Give an object the body that ``change`` makes of it, and add parts.

        Where it has one of the parts already, another process has done the same: nothing changes.

        Args:
            name: Its id.
            change: Called within the transaction.
            lease: Until when a process has a lease on it from now on; None leaves that.
            parts: The parts to add.
            claim: The claim of the process; None changes an object that another has claimed, too.

        Returns:
            Its body then; None: there is no such object, or another process has claimed it.

        Raises:
            StoreFullError: There is no room for it.
        """
        with self._transaction() as at:
            found = at.execute("SELECT body, claim FROM objects WHERE id = ?", (name,)).fetchone()
            if found is None or claim not in (None, found[1]):
                return None
            for part in parts:
                if not at.execute(_ADD_PART, (name, *part)).rowcount:
                    return bytes(found[0])
            if lease is not None:
                at.execute("UPDATE objects SET lease = ? WHERE id = ?", (lease, name))
            body = change(found[0])
            if body is not None:
                at.execute("UPDATE objects SET body = ? WHERE id = ?", (body, name))
            self._make_room(name)
            return found[0] if body is None else body

    def parts(self, name: str, part: str, after: int, limit: int) -> list[Part]:
        """The parts of that name whose numbers are over ``after``, by their order."""
        sql = """SELECT name, number, data FROM parts
                 WHERE id = ? AND name = ? AND number > ? ORDER BY number LIMIT ?"""
        return [
            Part._make(row) for row in self._connection.execute(sql, (name, part, after, limit))
        ]

    def numbers(self, name: str, part: str) -> set[int]:
        """The numbers of the parts of that name."""
        sql = "SELECT number FROM parts WHERE id = ? AND name = ?"
        return {number for (number,) in self._connection.execute(sql, (name, part))}

    def split_off(
        self,
        source: str,
        part: str,
        row: tuple[str, str, str],
        make: Callable[[int], bytes],
        expires: float,
        claim: int,
    ) -> bool:
        """Make an object of the parts of another, which loses them. Does nothing the second time.

        Nor does it where another process has claimed the source.

        Args:
            source: The id of the object that has the parts.
            part: Their name; they are called ``content`` then.
            row: Kind, id and owner of the new object.
            make: Its body, given the bytes of the parts.
            expires: When it expires.
            claim: The claim of the process, on the source.

        Returns:
            Whether there is such an object now: without parts there is none.
        """
        kind, name, owner = row
        with self._transaction() as at:
            sql = """SELECT coalesce(sum(length(data)), 0) FROM parts JOIN objects USING (id)
                     WHERE id = ? AND parts.name = ? AND claim = ?"""
            [(size,)] = at.execute(sql, (source, part, claim))
            if size:
                at.execute(
                    "INSERT INTO objects (id, kind, owner, body, expires) VALUES (?,?,?,?,?)",
                    (name, kind, owner, make(size), expires),
                )
                sql = "UPDATE parts SET id = ?, name = ? WHERE id = ? AND name = ?"
                at.execute(sql, (name, CONTENT, source, part))
            found = at.execute("SELECT 1 FROM objects WHERE id = ?", (name,)).fetchone()
            return found is not None

    def claim(self, kind: str, wanted: Callable[[bytes], bool]) -> Row | None:
        """Take a lease on an object of that kind that has none and ``wanted`` says yes to."""
        with self._transaction() as at:
            free, until = "kind = ? AND NOT lease BETWEEN ? AND ?", lease_until()
            for row in self._rows(free, (kind, *lease_bounds()), "ORDER BY number"):
                if wanted(row.body):
                    row = row._replace(lease=until, claim=row.claim + 1)
                    sql = "UPDATE objects SET lease = ?, claim = ? WHERE number = ?"
                    at.execute(sql, (until, row.claim, row.number))
                    return row
        return None

    def close(self) -> None:
        """Let go of the file."""
        self._connection.close()

"""The tables of a store as SQL, and the file that they are in.

::

    objects  number, id, kind, owner, body, expires, lease     one row an object; the body is JSON
       │ 1:n
    parts    id, name, number, data, bytes                    what is read apart from the body

    totals   bytes                                            kept by triggers: O(1) to read
"""

import os
from pathlib import Path

from pyengine.errors import ConfigError

VERSION = 1
"""Of the tables, as the file's ``user_version`` has it."""

_TABLES = """
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    body BLOB NOT NULL,
    expires REAL NOT NULL,
    lease REAL NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS objects_of_owner ON objects (owner, kind, number);
CREATE INDEX IF NOT EXISTS objects_by_expiry ON objects (expires);
CREATE TABLE IF NOT EXISTS parts (
    id TEXT NOT NULL REFERENCES objects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (id, name, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (bytes INTEGER NOT NULL);
INSERT INTO totals SELECT 0 WHERE NOT EXISTS (SELECT 1 FROM totals);
CREATE TRIGGER IF NOT EXISTS object_added AFTER INSERT ON objects
    BEGIN UPDATE totals SET bytes = bytes + length(new.body); END;
CREATE TRIGGER IF NOT EXISTS object_changed AFTER UPDATE OF body ON objects
    BEGIN UPDATE totals SET bytes = bytes + length(new.body) - length(old.body); END;
CREATE TRIGGER IF NOT EXISTS object_removed AFTER DELETE ON objects
    BEGIN UPDATE totals SET bytes = bytes - length(old.body); END;
CREATE TRIGGER IF NOT EXISTS part_added AFTER INSERT ON parts
    BEGIN UPDATE totals SET bytes = bytes + length(new.data); END;
CREATE TRIGGER IF NOT EXISTS part_removed AFTER DELETE ON parts
    BEGIN UPDATE totals SET bytes = bytes - length(old.data); END;
"""


def create_file(path: Path) -> None:
    """Make the file where there is none, for its owner's eyes only: it has people's prompts."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise ConfigError(f"the store {path} cannot be opened: {error}", param="store") from None


def statements() -> list[str]:
    """The statements of the tables one by one, for one transaction around all."""
    import sqlite3

    found, rest = [], ""
    for line in _TABLES.splitlines(keepends=True):
        rest += line
        if sqlite3.complete_statement(rest):
            found.append(rest)
            rest = ""
    return found

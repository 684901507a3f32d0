"""The tables of a store as SQL, and the file that they are in.

::

    objects  number, id, kind, owner, body, expires, lease, claim, bytes   the body is JSON
       │ 1:n
    parts    id, name, number, data                            what is read apart from the body

    labels   owner, kind, name, value, number                  by which objects are listed

    totals   owner, bytes                                      of objects and parts
    kinds    kind, objects                                     how many there are

Triggers keep ``bytes``, which is of an object and its parts, and the last three tables. Labels are
the fields of a body that lists are asked for by: ``_LABELLED`` has them, and ``metadata.NAME``.
"""

import os
from pathlib import Path

from pyengine.errors import ConfigError

VERSION = 3
"""The version of the tables, which the file's ``user_version`` has."""

_LABELLED = "('model', 'purpose')"
# Adds the bytes of the row `new`.
_ADD_LABELS = f"""
    INSERT OR IGNORE INTO labels
    SELECT new.owner, new.kind, key, value, new.number FROM json_each(CAST(new.body AS TEXT))
    WHERE key IN {_LABELLED} AND type = 'text';
    INSERT OR IGNORE INTO labels
    SELECT new.owner, new.kind, 'metadata.' || key, value, new.number
    FROM json_each(CAST(new.body AS TEXT), '$.metadata')
    WHERE type = 'text';
"""
_TABLES = f"""
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    owner TEXT NOT NULL,
    body BLOB NOT NULL,
    expires REAL NOT NULL,
    lease REAL NOT NULL DEFAULT 0,
    claim INTEGER NOT NULL DEFAULT 0,
    bytes INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX IF NOT EXISTS objects_of_owner ON objects (owner, kind, number);
CREATE INDEX IF NOT EXISTS objects_by_age ON objects (owner, number);
CREATE INDEX IF NOT EXISTS objects_by_expiry ON objects (expires);
CREATE TABLE IF NOT EXISTS parts (
    id TEXT NOT NULL REFERENCES objects (id) ON DELETE CASCADE,
    name TEXT NOT NULL,
    number INTEGER NOT NULL,
    data BLOB NOT NULL,
    PRIMARY KEY (id, name, number)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS totals (owner TEXT PRIMARY KEY, bytes INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS totals_by_bytes ON totals (bytes);
CREATE TABLE IF NOT EXISTS kinds (kind TEXT PRIMARY KEY, objects INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS labels (
    owner TEXT NOT NULL,
    kind TEXT NOT NULL,
    name TEXT NOT NULL,
    value TEXT NOT NULL,
    number INTEGER NOT NULL REFERENCES objects (number) ON DELETE CASCADE,
    PRIMARY KEY (owner, kind, name, value, number)
) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS labels_of_object ON labels (number);
CREATE TRIGGER IF NOT EXISTS object_labelled AFTER INSERT ON objects
WHEN json_valid(CAST(new.body AS TEXT)) BEGIN {_ADD_LABELS} END;
CREATE TRIGGER IF NOT EXISTS object_relabelled AFTER UPDATE OF body ON objects
WHEN json_valid(CAST(new.body AS TEXT)) BEGIN
    DELETE FROM labels WHERE number = new.number;
    {_ADD_LABELS}
END;
CREATE TRIGGER IF NOT EXISTS object_added AFTER INSERT ON objects BEGIN
    INSERT OR IGNORE INTO totals VALUES (new.owner, 0);
    INSERT OR IGNORE INTO kinds VALUES (new.kind, 0);
    UPDATE kinds SET objects = objects + 1 WHERE kind = new.kind;
    UPDATE objects SET bytes = length(new.body) WHERE number = new.number;
END;
CREATE TRIGGER IF NOT EXISTS object_changed AFTER UPDATE OF body ON objects BEGIN
    UPDATE objects SET bytes = bytes + length(new.body) - length(old.body)
    WHERE number = new.number;
END;
CREATE TRIGGER IF NOT EXISTS object_grown AFTER UPDATE OF bytes ON objects BEGIN
    UPDATE totals SET bytes = bytes + new.bytes - old.bytes WHERE owner = new.owner;
END;
CREATE TRIGGER IF NOT EXISTS object_removed AFTER DELETE ON objects BEGIN
    UPDATE totals SET bytes = bytes - old.bytes WHERE owner = old.owner;
    UPDATE kinds SET objects = objects - 1 WHERE kind = old.kind;
END;
CREATE TRIGGER IF NOT EXISTS part_added AFTER INSERT ON parts BEGIN
    UPDATE objects SET bytes = bytes + length(new.data) WHERE id = new.id;
END;
CREATE TRIGGER IF NOT EXISTS part_moved AFTER UPDATE OF id ON parts BEGIN
    UPDATE objects SET bytes = bytes - length(old.data) WHERE id = old.id;
    UPDATE objects SET bytes = bytes + length(new.data) WHERE id = new.id;
END;
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

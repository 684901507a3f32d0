"""The store of several workers: a file that all of them reach."""

import tempfile
from pathlib import Path

import msgspec

from pyengine.http.store.database import Database
from pyengine.http.store.store import StoreLimits


class SharedStore:
    """The file of a store: the one that was asked for, or one that ends with the server.

    Attributes:
        limits: As they were given, with the path of the file.
    """

    def __init__(self, limits: StoreLimits) -> None:
        """Make the file, and its tables.

        Raises:
            ConfigError: It cannot be opened, or is no store.
        """
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        if limits.path is None and limits.most_bytes:
            self._folder = tempfile.TemporaryDirectory(prefix="pyengine-store-")
            limits = msgspec.structs.replace(limits, path=str(Path(self._folder.name) / "store"))
        self.limits = limits
        if limits.most_bytes:
            Database(limits.path, limits.most_bytes).close()

    def close(self) -> None:
        """Remove the file, unless it was asked for. Idempotent."""
        if self._folder is not None:
            self._folder.cleanup()

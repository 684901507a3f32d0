"""The store of several workers: a file that all of them reach."""

import fcntl
import os
import shutil
import tempfile
import weakref
from pathlib import Path

import msgspec

from pyengine.errors import ConfigError
from pyengine.http.store.database import Database
from pyengine.http.store.store import StoreLimits

_PREFIX = "pyengine-store-"


class SharedStore:
    """The file of a store: the one that was asked for, or one that ends with the server.

    Attributes:
        limits: As they were given, with the path of the file.
    """

    def __init__(self, limits: StoreLimits) -> None:
        """Make the file, and its tables. Remove those that killed servers have left.

        Raises:
            ConfigError: It cannot be opened, or is no store.
        """
        self._folder: _Folder | None = None
        if limits.path is None and limits.most_bytes:
            try:
                _remove_abandoned()
                self._folder = _Folder()
            except OSError as error:
                raise ConfigError(
                    f"there is no temporary folder for what clients store ({error}); give --store "
                    "a file, or --store-bytes 0",
                    param="store",
                ) from None
            limits = msgspec.structs.replace(limits, path=str(self._folder.path / "store"))
        self.limits = limits
        if limits.most_bytes:
            Database(limits.path, limits.most_bytes).close()

    def close(self) -> None:
        """Remove the file, unless it was asked for. Idempotent."""
        if self._folder is not None:
            self._folder.close()


class _Folder:
    """A temporary folder, locked as long as its process lives.

    Attributes:
        path: Where it is.
        close: Removes it and gives the lock back. Idempotent; called at the end of the process.
    """

    def __init__(self) -> None:
        # It gets its name once it is locked, so that no other server takes it for abandoned.
        made = Path(tempfile.mkdtemp(prefix="pyengine-new-"))
        lock = os.open(made, os.O_RDONLY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        self.path = made.with_name(made.name.replace("pyengine-new-", _PREFIX, 1))
        made.rename(self.path)
        self.close = weakref.finalize(self, _remove, self.path, lock)


def _remove(path: Path, lock: int) -> None:
    shutil.rmtree(path, ignore_errors=True)
    os.close(lock)


def _remove_abandoned() -> None:
    """Remove the folders whose processes were killed: people's prompts are in them."""
    for path in Path(tempfile.gettempdir()).glob(f"{_PREFIX}*"):
        try:
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        except OSError:  # another user's, or gone
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(lock)  # its server runs
        else:
            _remove(path, lock)

"""Files that the server reads again when they change, or on SIGHUP: keys and certificates."""

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from pyengine.errors import PyengineError

log = logging.getLogger("pyengine.http")

POLL_S = 1.0


@asynccontextmanager
async def reloading(paths: Sequence[str], reload: Callable[[], None]) -> AsyncIterator[None]:
    """Call ``reload`` when one of ``paths`` has changed, and on SIGHUP; log it if it fails.

    On the main thread's loop, because of the signal. Without paths, SIGHUP is left as
    it was.
    """
    if not paths:
        yield
        return
    task = asyncio.create_task(_watch(paths, reload))
    try:
        yield
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def _watch(paths: Sequence[str], reload: Callable[[], None]) -> None:
    loop, asked = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGHUP, asked.set)
    before = _stamps(paths)
    try:
        while True:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(asked.wait(), POLL_S)
            now = _stamps(paths)
            if not asked.is_set() and now == before:
                continue
            asked.clear()
            before = now
            try:
                reload()
            except (PyengineError, OSError) as error:
                log.error("%s: goes on as it was", error)
            else:
                log.info("read again: %s", ", ".join(paths))
    finally:
        loop.remove_signal_handler(signal.SIGHUP)


def _stamps(paths: Sequence[str]) -> list[tuple[int, int, int] | None]:
    """Identifies a file's content: a new file in its place has another inode."""
    stamps: list[tuple[int, int, int] | None] = []
    for path in paths:
        try:
            status = os.stat(path)  # noqa: PTH116 - follows links, as certificate managers make them
        except OSError:
            stamps.append(None)
        else:
            stamps.append((status.st_mtime_ns, status.st_size, status.st_ino))
    return stamps

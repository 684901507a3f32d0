"""Runs the batches of a store, one at a time in each process, the oldest first."""

import asyncio
import contextlib
import logging
import time

import msgspec

from pyengine.http.access.door import Door
from pyengine.http.batches.lines import ENDPOINTS
from pyengine.http.batches.run import BatchRun, Means, decode_batch
from pyengine.http.errors import StoreUnavailableError
from pyengine.http.openai.schema.batches import BatchError, BatchErrors
from pyengine.http.store.database import Row

log = logging.getLogger("pyengine.http")

KIND = "batch"
ENDED = frozenset({"failed", "completed", "expired", "cancelled"})
# How soon a process takes over what another one has let go of.
_LOOK_S = 5.0
_encode = msgspec.json.Encoder().encode


class BatchRunner:
    """The batches that this process runs. Lives on the serving loop."""

    def __init__(self, means: Means, door: Door) -> None:
        """Run batches with ``means``, charged to the keys of ``door``."""
        self._means = means
        self._door = door
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._running: BatchRun | None = None

    @property
    def endpoints(self) -> list[str]:
        """The paths that a batch may name."""
        return [path for path in ENDPOINTS if path in self._means.served]

    def start(self) -> None:
        """Go on with what an earlier process has begun, where the store is a file."""
        if self._means.store.on and self._means.store.limits.path is not None:
            self.look()

    def look(self) -> None:
        """There is a new batch, or one was cancelled."""
        self._wanted.set()
        if self._running is not None:
            self._running.look()
        if self._task is None:
            self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Let go of the batch that runs; a later process goes on with it. Idempotent."""
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def _run(self) -> None:
        store = self._means.store
        pause = None if store.limits.path is None else _LOOK_S
        while True:
            self._wanted.clear()
            try:
                if (row := await store.claim(KIND, _unfinished)) is not None:
                    await self._run_one(row)
                    continue
            except StoreUnavailableError:
                pause = _LOOK_S  # the batch goes on when the store does
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), pause)

    async def _run_one(self, row: Row) -> None:
        key = self._door.named(row.owner) if row.owner else None
        if row.owner and key is None:
            await self._fail(row, "key_not_found", f"The API key {row.owner!r} is no more.")
            return
        self._running = BatchRun(row, key, self._means)
        try:
            await self._running.run()
        except StoreUnavailableError:
            raise
        except Exception as error:
            log.exception("batch %s failed", row.id)
            await self._fail(
                row, "internal_error", str(getattr(error, "message", "Internal error"))
            )
        finally:
            self._running = None

    async def _fail(self, row: Row, code: str, message: str) -> None:
        def failed(body: bytes) -> bytes:
            batch = decode_batch(body)
            batch.status, batch.failed_at = "failed", int(time.time())
            batch.errors = BatchErrors([BatchError(code, message)])
            return _encode(batch)

        await self._means.store.change(row.id, failed, lease=False)


def _unfinished(body: bytes) -> bool:
    return decode_batch(body).status not in ENDED

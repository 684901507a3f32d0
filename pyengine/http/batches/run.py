"""One batch, from its input to its output, as often interrupted as its processes die.

::

    validating ──► in_progress ──► finalizing ──► completed, expired
        │               └──► cancelling ──┘  └──► cancelled
        └──► failed

Answers are parts of the stored batch, numbered by their lines: a process that takes a batch over
answers the lines that have none. At the end they become the content of the output's files.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from io import BytesIO

import msgspec

from pyengine.http.access.keys import ApiKey
from pyengine.http.batches.files import content_of, file_of_parts
from pyengine.http.batches.lines import (
    MAX_LINES,
    AnswerLine,
    LineError,
    Malformed,
    RequestLine,
    read_lines,
)
from pyengine.http.batches.performer import Perform, answer, in_parallel
from pyengine.http.batches.usage import add_usage
from pyengine.http.errors import StoreUnavailableError
from pyengine.http.openai.schema.batches import (
    BatchError,
    BatchErrors,
    BatchObject,
    ExpiresAfter,
)
from pyengine.http.store.database import Part, Row
from pyengine.http.store.store import Store

OUTPUT, ERRORS, OPTIONS = "output", "errors", "options"
"""Parts of a stored batch: its answers by their lines, and how long its files are kept."""

PRIORITY = 1000
"""Is added to the priority of a batch's requests: others go first."""

_TICK_S = 1.0
_MOST_ERRORS = 100
_encode = msgspec.json.Encoder().encode
decode_batch = msgspec.json.Decoder(BatchObject).decode
_expires_after = msgspec.json.Decoder(ExpiresAfter | None).decode


@dataclass(frozen=True)
class Means:
    """The parts of a server that a batch needs.

    Attributes:
        store: Has the batch.
        perform: Answers a request.
        admit: Counts a request of a key; the seconds until there is room, if there is none.
        new_id: Makes ids.
        served: The paths that the server has.
        workers: Requests at once.
    """

    store: Store
    perform: Perform
    admit: Callable[[ApiKey], float]
    new_id: Callable[[str], str]
    served: Iterable[str]
    workers: int


class BatchRun:
    """A batch that this process has a lease on. Used on the serving loop."""

    def __init__(self, row: Row, key: ApiKey | None, means: Means) -> None:
        """Charge ``key`` for the batch in ``row``."""
        self._name = row.id
        self._row = row
        self._batch = decode_batch(row.body)
        self._key = key
        self._means = means
        self._store = means.store
        self._stop = asyncio.Event()
        self._looks = asyncio.Event()
        self._gone = False

    def look(self) -> None:
        """The batch may have been cancelled."""
        self._looks.set()

    async def run(self) -> None:
        """Bring the batch to its end, or until this is cancelled; another may go on then."""
        keeping = asyncio.create_task(self._keep())
        try:
            if self._batch.status == "validating":
                await self._validate()
            if self._batch.status == "in_progress":
                await self._answer()
            if not self._gone and self._batch.status in ("in_progress", "cancelling", "finalizing"):
                await self._finalize()
        finally:
            keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await keeping
            await self._store.change(self._name, lambda _: None, lease=False, claim=self._row.claim)
            await self._store.change(self._batch.input_file_id, lambda _: None, lease=False)

    async def _keep(self) -> None:
        """Renew the leases on the batch and its input; see when it is cancelled or expires."""
        while True:
            with contextlib.suppress(StoreUnavailableError):
                batch = await self._change(lambda batch: None)
                await self._store.change(self._batch.input_file_id, lambda _: None, lease=True)
                if batch is None or batch.status == "cancelling" or batch.expires_at < time.time():
                    self._stop.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._looks.wait(), _TICK_S)
            self._looks.clear()

    async def _change(
        self, change: Callable[[BatchObject], object], *parts: Part
    ) -> BatchObject | None:
        """Change the stored batch; returns it as it is then, or None: it is gone, or another's."""

        def changed(body: bytes) -> bytes:
            batch = decode_batch(body)
            change(batch)
            return _encode(batch)

        body = await self._store.change(
            self._name, changed, *parts, lease=True, claim=self._row.claim
        )
        if body is None:
            self._gone = True
            return None
        self._batch = decode_batch(body)
        return self._batch

    async def _requests(self) -> list[RequestLine | Malformed]:
        data = await content_of(self._store, self._batch.input_file_id)

        def read() -> list[RequestLine | Malformed]:
            # What follows enough wrong lines, or more lines than there may be, is not read.
            found, wrong = [], 0
            for line in read_lines(BytesIO(data), self._means.served, self._batch.endpoint):
                found.append(line)
                wrong += isinstance(line, Malformed)
                if wrong == _MOST_ERRORS or len(found) > MAX_LINES:
                    break
            return found

        return await asyncio.to_thread(read)

    async def _validate(self) -> None:
        lines = await self._requests()
        wrong = [
            BatchError(line.code, line.message, line.param, line.line)
            for line in lines
            if isinstance(line, Malformed)
        ]
        if not lines:
            wrong = [BatchError("empty_file", "The input file has no requests.")]
        if len(lines) > MAX_LINES:
            text = f"The input file has more than {MAX_LINES} requests, which are the most."
            wrong = [BatchError("too_many_requests", text)]

        def validated(batch: BatchObject) -> None:
            now = int(time.time())
            if batch.status != "validating":
                return  # it was cancelled meanwhile
            if wrong:
                batch.status, batch.failed_at = "failed", now
                batch.errors = BatchErrors(wrong)
            else:
                batch.status, batch.in_progress_at = "in_progress", now
                batch.request_counts.total = len(lines)

        await self._change(validated)

    async def _answer(self) -> None:
        """Answer the lines that have no answer, until all have, or the batch is to stop."""
        todo = iter(await self._unanswered())

        async def work() -> None:
            for number, request in todo:
                if self._stop.is_set():
                    return
                await self._admitted()
                means = self._means
                line_id = means.new_id("batch_req_")
                line = await answer(means.perform, request, line_id, self._key, PRIORITY)
                await self._add(number, line)

        working = asyncio.ensure_future(in_parallel(self._means.workers, work))
        stopping = asyncio.ensure_future(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            stopping.cancel()
            if not working.done():
                working.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await working

    async def _admitted(self) -> None:
        """Wait until the key has room within its limits; the next request is counted then."""
        while self._key is not None and (seconds := self._means.admit(self._key)):  # noqa: ASYNC110
            await asyncio.sleep(seconds)

    async def _unanswered(self) -> list[tuple[int, RequestLine]]:
        done = await self._store.numbers(self._name, OUTPUT)
        done |= await self._store.numbers(self._name, ERRORS)
        return [
            (number, line)
            for number, line in enumerate(await self._requests())
            if isinstance(line, RequestLine) and number not in done
        ]

    async def _add(self, number: int, line: AnswerLine) -> None:
        def counted(batch: BatchObject) -> None:
            batch.request_counts.completed += line.good
            batch.request_counts.failed += not line.good
            batch.usage = add_usage(batch.usage, line)

        part = Part(OUTPUT if line.good else ERRORS, number, _encode(line) + b"\n")
        batch = await self._change(counted, part)
        if batch is None or batch.status == "cancelling":
            self._stop.set()

    async def _finalize(self) -> None:
        """Make the files, and end the batch."""
        cancelled = self._batch.status == "cancelling"
        expired = not cancelled and self._stop.is_set()
        if expired:
            await self._expire()
        [given] = await self._store.parts(self._name, OPTIONS)
        kept = _expires_after(given.data)
        seconds = None if kept is None else float(kept.seconds)
        # The same names the second time, where a process has died between.
        names = {
            part: f"file-{self._name.removeprefix('batch_')}_{part}" for part in (OUTPUT, ERRORS)
        }
        there = {
            part: await file_of_parts(self._store, self._row, part, name, seconds)
            for part, name in names.items()
        }

        def ended(batch: BatchObject) -> None:
            now = int(time.time())
            batch.finalizing_at = now
            if cancelled:
                batch.status, batch.cancelled_at = "cancelled", now
            elif expired:
                batch.status, batch.expired_at = "expired", now
            else:
                batch.status, batch.completed_at = "completed", now
            batch.output_file_id = names[OUTPUT] if there[OUTPUT] else None
            batch.error_file_id = names[ERRORS] if there[ERRORS] else None

        await self._change(ended)

    async def _expire(self) -> None:
        """Give the lines that have no answer an error."""
        error = LineError("batch_expired", "The batch expired before the request was answered.")
        for number, request in await self._unanswered():
            line_id = self._means.new_id("batch_req_")
            await self._add(number, AnswerLine(line_id, request.custom_id, None, error))

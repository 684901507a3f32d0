"""A batch from file to file, without a server: ``pyengine run-batch``.

::

    input ──► check all lines ──► those that the output lacks ──► endpoints ──► output, a line each

A line is written whole as soon as it is answered. Who is killed and runs again goes on behind the
lines that are there; the rest of one that was being written is cut off.
"""

import fcntl
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Self

import msgspec

from pyengine.errors import ConfigError, EngineDeadError
from pyengine.http.app import App
from pyengine.http.batches.lines import AnswerLine, Malformed, RequestLine, read_lines
from pyengine.http.batches.performer import answer, in_parallel
from pyengine.http.operations.paths import routes

_encode = msgspec.json.Encoder().encode
_SHOWN = 5


class _Answered(msgspec.Struct):
    """The fields of an output line that are read."""

    custom_id: str


_answered = msgspec.json.Decoder(_Answered)


@dataclass
class Counts:
    """Progress of a batch.

    Attributes:
        total: The requests of the input.
        before: Requests that an earlier run has answered.
        answered: Requests that this run has answered.
        failed: Requests of this run whose status is not 200.
    """

    total: int
    before: int = 0
    answered: int = 0
    failed: int = 0


class OfflineBatch:
    """A batch whose input is checked and whose output is open: a context. Used on one loop.

    Attributes:
        counts: How far it is.
    """

    def __init__(self, source: Path, target: Path) -> None:
        """Check the input, and what the output has of it.

        Raises:
            ConfigError: A file cannot be read or written, another process writes to the output, or
                a line is malformed; says which.
        """
        self._source = source
        ids = _checked(source)
        self._output = _opened(target)
        try:
            self._done = _done(self._output, target)
        except BaseException:
            self._output.close()
            raise
        if foreign := self._done - ids:
            self._output.close()
            raise ConfigError(
                f"{target} has the answer of {min(foreign)[:100]!r}, which {source} does not ask; "
                "give another output"
            )
        self.counts = Counts(len(ids), len(self._done))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._output.close()

    async def run(self, app: App, workers: int, progress: Callable[[Counts], None]) -> None:
        """Answer what is not answered yet.

        Raises:
            EngineDeadError: The engine has died; what was answered before is written.
        """
        requests = self._requests()

        async def work() -> None:
            for request in requests:
                line = await answer(app.perform, request, app.new_id("batch_req_"))
                if app.engine.failure is not None:
                    raise EngineDeadError(f"the engine has died: {app.engine.failure}")
                self._write(line)
                progress(self.counts)

        await in_parallel(workers, work)

    def _requests(self) -> Iterator[RequestLine]:
        with self._source.open("rb") as lines:
            for request in read_lines(lines, routes().paths):
                if isinstance(request, RequestLine) and request.custom_id not in self._done:
                    yield request

    def _write(self, line: AnswerLine) -> None:
        self._output.write(_encode(line) + b"\n")
        self._output.flush()
        self.counts.answered += 1
        self.counts.failed += not line.good


def _checked(source: Path) -> set[str]:
    """The ids of an input's requests.

    Raises:
        ConfigError: It cannot be read, or lines are malformed; names the first of them.
    """
    ids: set[str] = set()
    wrong: list[Malformed] = []
    try:
        with source.open("rb") as lines:
            for line in read_lines(lines, routes().paths):
                if isinstance(line, Malformed):
                    wrong.append(line)
                else:
                    ids.add(line.custom_id)
    except OSError as error:
        raise ConfigError(f"the input cannot be read: {error}") from None
    if wrong:
        shown = "; ".join(f"line {each.line}: {each.message}" for each in wrong[:_SHOWN])
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise ConfigError(f"{source} has {len(wrong)} malformed lines: {shown}{more}")
    return ids


def _opened(target: Path) -> BinaryIO:
    try:
        output = os.fdopen(os.open(target, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666), "r+b")
    except OSError as error:
        raise ConfigError(f"the output cannot be written: {error}") from None
    try:
        fcntl.flock(output, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        output.close()
        raise ConfigError(f"another process writes to {target}") from None
    return output


def _done(output: BinaryIO, target: Path) -> set[str]:
    """The ids of the answers in an output; a line without its end is cut off.

    Raises:
        ConfigError: A line is no answer.
    """
    found: set[str] = set()
    end = 0
    for number, line in enumerate(_whole_lines(output), 1):
        try:
            found.add(_answered.decode(line).custom_id)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            raise ConfigError(
                f"{target} has something else than answers in line {number}; give another output"
            ) from None
        end += len(line)
    output.truncate(end)
    return found


def _whole_lines(output: Iterable[bytes]) -> Iterator[bytes]:
    return (line for line in output if line.endswith(b"\n"))

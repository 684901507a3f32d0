"""Logs of pyengine's processes: text for people, or a JSON object a line.

A library leaves logging to the service that embeds it; `serve` and the processes that it starts
call :func:`configure`. What they write goes through an :class:`Output`, so that a pipe that is not
read stops nothing but the log.
"""

import atexit
import contextlib
import logging
import os
import threading
import time
from collections import deque
from functools import cache
from typing import Any, Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

MOST_WAITING = 4 << 20
"""Bytes that wait for the reader of an output; those beyond are dropped."""

_configured: tuple[LogLevel, LogFormat] | None = None


class Output:
    """Writes to a descriptor on a thread of its own. Any thread may write, and none waits."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._bytes = 0
        self._dropped = 0
        self._thread: threading.Thread | None = None

    def write(self, text: str | bytes) -> None:
        """Write ``text`` soon, or drop it where too much waits."""
        data = text.encode("utf-8", "backslashreplace") if isinstance(text, str) else text
        with self._changed:
            if self._bytes > MOST_WAITING:
                self._dropped += 1
                return
            if self._dropped:
                told = f"{stamp(time.time())} warning: {self._dropped} lines of logs were dropped\n"
                data = told.encode() + data
                self._dropped = 0
            self._waiting.append(data)
            self._bytes += len(data)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="pyengine-output", daemon=True
                )
                self._thread.start()
                atexit.register(self.finish)

    def flush(self) -> None:
        """Does nothing: text is written as soon as its reader takes it."""

    def finish(self, seconds: float = 1.0) -> None:
        """Wait until all is written, or its reader has had ``seconds`` to take it."""
        with self._changed:
            self._changed.wait_for(lambda: not self._bytes, seconds)

    def _run(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting)
                data = self._waiting.popleft()
            left = memoryview(data)
            with contextlib.suppress(OSError):  # the reader has left: nothing can be said
                while left:
                    left = left[os.write(self._descriptor, left) :]
            with self._changed:
                self._bytes -= len(data)
                self._changed.notify_all()


@cache
def output(descriptor: Literal[1, 2]) -> Output:
    """The output of this process on stdout (1) or stderr (2)."""
    return Output(descriptor)


def finish() -> None:
    """Wait a moment until what was written is read; for a process that ends."""
    for descriptor in (1, 2):
        output(descriptor).finish()


def configure(level: LogLevel, form: LogFormat) -> None:
    """Let the loggers of pyengine write to stderr, from ``level`` on."""
    handler = logging.StreamHandler(output(2))
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("pyengine")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    global _configured
    _configured = level, form


def say(descriptor: Literal[1, 2], text: str, level: LogLevel = "info") -> None:
    """Write a line or a few for the user; an object where the log is one of objects."""
    if _configured is not None and _configured[1] == "json":
        now = stamp(time.time())
        line = {"time": now, "level": level, "event": "pyengine.serve", "message": text}
        text = msgspec.json.encode(line).decode()
    output(descriptor).write(f"{text}\n")


def configured() -> tuple[LogLevel, LogFormat] | None:
    """The last arguments of :func:`configure`, for processes that this one starts."""
    return _configured


def stamp(seconds: float) -> str:
    """A time since the epoch as RFC 3339 has it, in UTC, with milliseconds."""
    whole, milliseconds = divmod(int(seconds * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(whole))}.{milliseconds:03}Z"


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.levelname = record.levelname.lower()
        return super().format(record)

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s: %(message)s")

    def formatTime(self, record: logging.LogRecord, datefmt: str | None = None) -> str:  # noqa: N802
        return stamp(record.created)


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": stamp(record.created),
            "level": record.levelname.lower(),
            "event": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line).decode()

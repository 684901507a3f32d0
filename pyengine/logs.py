"""Logs of pyengine's processes: text for people, or a JSON object a line.

A library leaves logging to the service that embeds it; `serve` and the processes that it starts
call :func:`configure`.
"""

import logging
import sys
import time
from typing import Any, Literal

import msgspec

LogLevel = Literal["debug", "info", "warning", "error"]
LogFormat = Literal["text", "json"]

_configured: tuple[LogLevel, LogFormat] | None = None


def configure(level: LogLevel, form: LogFormat) -> None:
    """Let the loggers of pyengine write to stderr, from ``level`` on."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(_Json() if form == "json" else _Text())
    logger = logging.getLogger("pyengine")
    logger.handlers = [handler]
    logger.setLevel(level.upper())
    logger.propagate = False
    global _configured
    _configured = level, form


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

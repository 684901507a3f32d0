"""Processes that this one starts, the control line to each, and the messages all of them send.

A control line is a socket that carries JSON, one message a line.
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence

import msgspec

from pyengine import errors
from pyengine.errors import PyengineError

EXIT_TIMEOUT_S = 10.0
_HELD_BACK = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Loading(msgspec.Struct, tag=True):
    """Bytes of weights loaded, and in all; from a process that loads."""

    done: int
    total: int


class Failed(msgspec.Struct, tag=True):
    """Loading failed, or an actor died; the last message of its sender."""

    kind: str
    message: str
    param: str | None

    @classmethod
    def of(cls, error: BaseException) -> "Failed":
        """``error`` in a form that crosses to another process."""
        return cls(type(error).__name__, str(error), getattr(error, "param", None))

    def error(self) -> PyengineError:
        """The error again: one of pyengine's as it was, any other as EngineDeadError."""
        kind = getattr(errors, self.kind, None)
        if isinstance(kind, type) and issubclass(kind, PyengineError):
            return kind(self.message, param=self.param)
        return errors.EngineDeadError(f"{self.kind}: {self.message}")


def encode_line(message: msgspec.Struct) -> bytes:
    """``message`` as it goes over a control line, its end counted in."""
    return msgspec.json.encode(message) + b"\n"


class ControlLine:
    """A child's end of its control line. Any thread may send; one thread receives."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._lock = threading.Lock()
        self._lines = self._socket.makefile("rb")

    def receive(self) -> bytes:
        """The next message, still encoded; empty at the end of the line."""
        try:
            return self._lines.readline()
        except ConnectionResetError:  # the other side has ended before it read all messages
            return b""

    def wait_for_end(self) -> None:
        """Return when the other side has closed the line, or died."""
        while self.receive():
            pass

    def send(self, message: msgspec.Struct) -> None:
        """Send a message; it is dropped if the other side has ended."""
        with self._lock, contextlib.suppress(OSError):  # the receiving thread sees the end too
            self._socket.sendall(encode_line(message))


def spawn(module: str, inherited: Sequence[int]) -> tuple["subprocess.Popen[bytes]", socket.socket]:
    """Run ``module``, with its end of a new control line as argument; returns this side's end too.

    The process inherits the descriptors. The line ends when either process ends, however it does.
    SIGINT, SIGTERM and SIGHUP are held back from it until :func:`leave_signals` or
    :func:`admit_signals`.
    """
    mine, theirs = socket.socketpair()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _HELD_BACK)
    try:
        with theirs:
            process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno(), *inherited],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    return process, mine


def leave_signals() -> None:
    """Leave SIGINT, SIGTERM and SIGHUP, which reach the whole process group, to the process that
    started this one. Called first in a child's main thread.
    """
    for kind in _HELD_BACK:
        signal.signal(kind, signal.SIG_IGN)
    admit_signals()


def admit_signals() -> None:
    """Let SIGINT, SIGTERM and SIGHUP reach a child, which is in a process group of its own."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, _HELD_BACK)

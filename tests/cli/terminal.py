"""A terminal for tests: a program under a pty, what it shows, and keys to press."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.programs import PYENGINE, environment

_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]|\r")
WAIT_S = 60.0  # most that an answer may take on a busy machine; only a hang takes so long

# A session of its own whose terminal this is, so that Ctrl-C reaches it as a signal.
SETSID = ("setsid", "--ctty", "--wait")
CTRL_C, CTRL_D, ENTER, ALT_ENTER = "\x03", "\x04", "\r", "\x1b\r"


class Terminal:
    """A running program and the master's side of its terminal."""

    def __init__(self, process: "subprocess.Popen[bytes]", master: int) -> None:
        self.process = process
        self._master = master
        self._shown = b""
        self._seen = 0

    def press(self, keys: str) -> None:
        """Send keys."""
        os.write(self._master, keys.encode())

    def expect(self, pattern: str) -> "re.Match[str]":
        """Wait until ``pattern`` shows up behind what was expected before."""
        deadline = time.monotonic() + WAIT_S
        while True:
            text = self.text()
            if match := re.compile(pattern).search(text, self._seen):
                self._seen = match.end()
                return match
            alive = self._more(deadline - time.monotonic())
            assert alive, f"{pattern!r} did not show up in:\n{text}"

    def text(self) -> str:
        """All that was shown, without escape codes."""
        return _ESCAPES.sub("", self._shown.decode(errors="replace"))

    def wait(self) -> int:
        """The exit code, once everything was shown."""
        deadline = time.monotonic() + WAIT_S
        while self._more(deadline - time.monotonic()):
            pass
        return self.process.wait(WAIT_S)

    def _more(self, seconds: float) -> bool:
        """Read what is shown next; False at the end, or when ``seconds`` have passed."""
        ready = select.poll()  # select() takes no descriptor above 1023
        ready.register(self._master, select.POLLIN)
        if seconds <= 0 or not ready.poll(seconds * 1000):
            return False
        try:
            chunk = os.read(self._master, 1 << 16)
        except OSError:  # on Linux a terminal whose program has ended
            return False
        self._shown += chunk
        return bool(chunk)


@contextmanager
def terminal(*arguments: str, command: Sequence[str] = PYENGINE) -> Iterator[Terminal]:
    """``pyengine`` in a terminal of its own; killed at the end if it still runs."""
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [*SETSID, *command, *arguments],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=environment(COLUMNS="200", LINES="50"),
    )
    os.close(slave)
    try:
        yield Terminal(process, master)
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
            process.wait()
        os.close(master)

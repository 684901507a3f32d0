"""pyengine as a person runs it: a process of its own, controlled by arguments, signals and keys."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
PYENGINE = (sys.executable, "-m", "pyengine")
START_S = 60.0  # most that a start may take on a busy machine; only a hang takes so long


def environment(**variables: str) -> dict[str, str]:
    """This process's environment without pyengine's own settings, and with ``variables``."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith("PYENGINE_")}
    path = os.pathsep.join(filter(None, (str(REPOSITORY), kept.get("PYTHONPATH"))))
    return kept | {"PYTHONPATH": path, "PROMPT_TOOLKIT_NO_CPR": "1", "TERM": "xterm"} | variables


def python(program: str, *arguments: str) -> str:
    """What a program of Python prints in a fresh interpreter."""
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        capture_output=True,
        text=True,
        env=environment(),
        timeout=START_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def free(port: int) -> bool:
    """Whether nothing listens on ``port`` here."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) != 0


def children(parent: int, module: str = "") -> list[int]:
    """The processes that ``parent`` has started, of those that run ``module``; oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()
            command = (entry / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(state[1]) == parent and state[0] != "Z" and module in command:
            found.append(int(entry.name))
    return sorted(found)


async def until(condition: Callable[[], object]) -> None:
    """Return when ``condition`` holds, of something that is read from memory and tells nobody."""
    async with asyncio.timeout(START_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


async def wait_for_end(pid: int) -> None:
    """Return when process ``pid``, which need not be a child, is gone."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return
    loop = asyncio.get_running_loop()
    gone = asyncio.Event()
    loop.add_reader(descriptor, gone.set)
    try:
        await asyncio.wait_for(gone.wait(), 10)
    finally:
        loop.remove_reader(descriptor)
        os.close(descriptor)


class Server:
    """``pyengine serve``, or a program like it, in a process; what it prints is collected.

    Attributes:
        process: The process.
        output: Lines of its stdout and stderr so far.
    """

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self.output: list[str] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.output.append(line)
                self._changed.notify_all()
        with self._changed:
            self.output.append("")  # the end
            self._changed.notify_all()

    def expect(self, pattern: str, seconds: float = START_S, after: int = 0) -> "re.Match[str]":
        """Wait until a line matches ``pattern``; fails with all that was printed if none does.

        Args:
            pattern: A regular expression.
            seconds: How long it may take.
            after: Lines of the output that do not count.
        """

        def found() -> "re.Match[str] | None":
            lines = self.output[after:]
            return next(filter(None, (re.search(pattern, line) for line in lines)), None)

        with self._changed:
            self._changed.wait_for(lambda: found() or "" in self.output, seconds)
            match = found()
        assert match, f"no line matches {pattern!r}:\n{''.join(self.output)}"
        return match

    def url(self) -> str:
        """Where it serves, once it is ready."""
        return self.expect(r"ready: \S+ at (\S+)/v1")[1]

    def end(self, kind: signal.Signals, seconds: float = START_S) -> int:
        """Send a signal; the exit code, once everything it printed was read."""
        self.process.send_signal(kind)
        return self.wait(seconds)

    def wait(self, seconds: float = START_S) -> int:
        """The exit code, once everything it printed was read."""
        code = self.process.wait(seconds)
        self._reader.join(START_S)
        return code


@contextmanager
def served(
    *arguments: str,
    command: Sequence[str] = PYENGINE,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
) -> Iterator[Server]:
    """``pyengine serve`` with ``arguments``; killed at the end if it still runs."""
    with running(*command, "serve", *arguments, cwd=cwd, env=env) as server:
        yield server


@contextmanager
def running(
    *command: str, cwd: Path | None = None, env: dict[str, str] | None = None
) -> Iterator[Server]:
    """A program that serves; killed at the end if it still runs."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        cwd=cwd,
        env=environment() if env is None else env,
    )
    server = Server(process)
    try:
        yield server
    finally:
        if process.poll() is None:
            process.kill()
        server.wait()
        assert process.stdout is not None
        process.stdout.close()

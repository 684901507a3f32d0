"""A server that benches put under load: its processes, and their memory."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

MODEL = "pyengine-demo"
MIB = 1 << 20
QUIET = ("--log-level", "warning")
TEXT: dict[str, Any] = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 16}


@contextmanager
def served(*arguments: str) -> Iterator[tuple[str, int]]:
    """A server's URL and process id."""
    command = [sys.executable, "-m", "pyengine", "serve", "--port", "0", *QUIET, *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        ready = (re.match(r"ready: \S+ at (\S+)/v1", line) for line in process.stdout)
        url = next(filter(None, ready))[1]
        try:
            yield url, process.pid
        finally:
            process.terminate()
            process.stdout.read()


def processes(server: int) -> dict[str, int]:
    """The server's processes by name: the supervisor and what it has started."""
    found = {"supervisor": server}
    for entry in sorted(Path("/proc").glob("[0-9]*"), key=lambda path: int(path.name)):
        try:
            parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            command = (entry / "cmdline").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if parent == server:
            kind = "engine" if "engine_main" in command else f"worker {len(found)}"
            found[kind] = int(entry.name)
    return found


def resident_mib(pid: int) -> tuple[float, float]:
    """The resident memory that a process has of its own, and what it shares with others."""
    resident, shared = map(int, Path(f"/proc/{pid}/statm").read_text().split()[1:3])
    page_mib = os.sysconf("SC_PAGESIZE") / MIB
    return (resident - shared) * page_mib, shared * page_mib

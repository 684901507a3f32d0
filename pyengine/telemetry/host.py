"""What the machine gave the engine's threads: cores, and how long they waited for one.

The kernel counts both for each thread (``/proc/<pid>/task/<tid>/schedstat``), the group of
processes how long its quota stopped it (``cpu.stat``), and the machine what other machines on the
same host took (``steal`` in ``/proc/stat``). A file that is not there counts as 0.
"""

import os
import threading
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Self

import msgspec

_CGROUP = Path("/proc/self/cgroup")
_CGROUPS = Path("/sys/fs/cgroup")
# The names of the engine's own threads, as they begin, and the track whose work they do.
_TRACKS = {
    "pyengine-scheduler": "scheduler",
    "pyengine-detok": "detokenizer",
    "pyengine-cpu": "device",
}


class ThreadUse(msgspec.Struct, gc=False, frozen=True):
    """The threads of one track since they began, or in a window.

    Attributes:
        track: As :class:`pyengine._core.Track` names it.
        running_ns: Nanoseconds on a core.
        waiting_ns: Nanoseconds in which a thread was ready to run and had no core.
        taken_off: How often the kernel took the core away.
    """

    track: str
    running_ns: int
    waiting_ns: int
    taken_off: int

    def plus(self, other: "ThreadUse", sign: int = 1) -> "ThreadUse":
        """The sum with ``other`` of the same track; the difference where ``sign`` is -1."""
        return ThreadUse(
            self.track,
            self.running_ns + sign * other.running_ns,
            self.waiting_ns + sign * other.waiting_ns,
            self.taken_off + sign * other.taken_off,
        )


class HostUse(msgspec.Struct, frozen=True):
    """What the machine gave a process of the engine. All numbers only grow.

    Attributes:
        threads: By track; of tracks whose threads are in the process.
        throttled_ns: Nanoseconds for which a CPU quota stopped the process' group.
        stolen_ns: Nanoseconds of this machine's cores that the host gave to others.
        faults: Pages that were read from a disk.
    """

    threads: list[ThreadUse] = []
    throttled_ns: int = 0
    stolen_ns: int = 0
    faults: int = 0

    @classmethod
    def of_engine(cls) -> Self:
        """The engine's own threads in this process. Any thread."""
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        found: dict[str, ThreadUse] = {}
        for thread, name in _threads(names):
            if (track := track_of(name)) is not None:
                use = _thread(thread, track)
                found[track] = use.plus(found[track]) if track in found else use
        return cls(list(found.values()), _throttled_ns(), _stolen_ns(), _faults())

    def with_caller(self, track: str) -> "HostUse":
        """With the calling thread, which does the work of ``track`` in a process of its own."""
        use = _thread(threading.get_native_id(), track)
        return msgspec.structs.replace(self, threads=[*self.threads, use])

    def since(self, earlier: "HostUse") -> "HostUse":
        """The difference to ``earlier``, read in the same processes."""
        before = {use.track: use for use in earlier.threads}
        return HostUse(
            [
                use.plus(before[use.track], -1) if use.track in before else use
                for use in self.threads
            ],
            self.throttled_ns - earlier.throttled_ns,
            self.stolen_ns - earlier.stolen_ns,
            self.faults - earlier.faults,
        )


def track_of(name: str) -> str | None:
    """The track of the engine's thread called ``name``; None: it is not one of the engine's."""
    return next((track for own, track in _TRACKS.items() if name.startswith(own)), None)


def _threads(names: dict[int | None, str]) -> Iterator[tuple[int, str]]:
    """Number and name of each thread of this process; ``names`` has those of Python's."""
    try:
        threads = [int(task.name) for task in Path("/proc/self/task").iterdir()]
    except OSError:
        return
    for thread in threads:
        name = names.get(thread) or _text(f"/proc/self/task/{thread}/comm").strip()
        yield thread, name


def _thread(thread: int, track: str) -> ThreadUse:
    folder = f"/proc/self/task/{thread}"
    running, waiting, *_ = (*map(int, _text(f"{folder}/schedstat").split()), 0, 0)
    return ThreadUse(track, running, waiting, _field(f"{folder}/status", "nonvoluntary_ctxt"))


def _throttled_ns() -> int:
    """By the group of this process: of version 2 in microseconds, of version 1 in nanoseconds."""
    path = _quota_file()
    if path is None:
        return 0
    return 1000 * _field(path, "throttled_usec") or _field(path, "throttled_time")


@cache
def _quota_file() -> Path | None:
    for line in _text(_CGROUP).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers == "" or "cpu" in controllers.split(","):
            root = _CGROUPS if controllers == "" else _CGROUPS / "cpu"
            # In a container the group is the root of what is mounted.
            for file in (root / path.lstrip("/") / "cpu.stat", root / "cpu.stat"):
                if file.exists():
                    return file
    return None


def _stolen_ns() -> int:
    values = _text("/proc/stat").partition("\n")[0].split()
    ticks = int(values[8]) if len(values) > 8 else 0
    return ticks * (1_000_000_000 // os.sysconf("SC_CLK_TCK"))


def _faults() -> int:
    # The name before it may hold spaces and parentheses.
    values = _text("/proc/self/stat").rpartition(")")[2].split()
    return int(values[9]) if len(values) > 9 else 0


def _field(path: str | Path, name: str) -> int:
    """The number behind the line of ``path`` that begins with ``name``; 0 where there is none."""
    for line in _text(path).splitlines():
        if line.startswith(name):
            return int(line.split()[-1])
    return 0


def _text(path: str | Path) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace")
    except OSError:
        return ""

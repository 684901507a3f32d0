"""What the machine gave threads: a stolen core shows, whoever asks."""

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pyengine.telemetry import host
from pyengine.telemetry.host import HostUse, ThreadUse

BURN = "import os; os.sched_setaffinity(0, {%d})\nwhile True: pass"
MS = 1_000_000

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waits for a core"
)


@contextmanager
def one_core_with_another() -> Iterator[None]:
    """This thread on one core, which a busy process has as well."""
    before = os.sched_getaffinity(0)
    core = min(before)
    other = subprocess.Popen([sys.executable, "-c", BURN % core])
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
        other.kill()
        other.wait()


def of_caller() -> ThreadUse:
    return HostUse().with_caller("frontend").threads[0]


@pytest.mark.slow
def test_a_stolen_core_is_a_wait() -> None:
    with one_core_with_another():
        before = of_caller()
        until = time.monotonic() + 60
        while of_caller().waiting_ns < before.waiting_ns + 50 * MS and time.monotonic() < until:
            pass
    use = of_caller().plus(before, -1)
    assert use.waiting_ns >= 50 * MS
    assert use.taken_off > 0
    assert use.running_ns > 0


def test_threads_of_the_engine_are_told_by_their_names() -> None:
    go_on = threading.Event()
    named = threading.Thread(target=go_on.wait, name="pyengine-scheduler")
    other = threading.Thread(target=go_on.wait, name="pyengine-control")
    named.start()
    other.start()
    try:
        names = {thread.native_id: thread.name for thread in threading.enumerate()}
        own = {named.native_id: "scheduler", other.native_id: None}
        assert {t: host.track_of(names[t]) for t in own} == own
        assert "scheduler" in {use.track for use in HostUse.of_engine().threads}
    finally:
        go_on.set()
        named.join()
        other.join()


def test_a_window_is_the_difference() -> None:
    early = HostUse([ThreadUse("scheduler", 5, 1, 0)], 10, 20, 1)
    late = HostUse([ThreadUse("scheduler", 9, 4, 2), ThreadUse("device", 7, 0, 0)], 15, 20, 3)
    threads = [ThreadUse("scheduler", 4, 3, 2), ThreadUse("device", 7, 0, 0)]
    assert late.since(early) == HostUse(threads, 5, 0, 2)


@pytest.mark.parametrize(
    ("group", "file", "text", "expected"),
    [
        ("0::/a", "a/cpu.stat", "usage_usec 9\nthrottled_usec 12\n", 12_000),
        ("0::/", "cpu.stat", "nr_throttled 1\nthrottled_usec 5\n", 5_000),
        ("3:cpu,cpuacct:/b", "cpu/b/cpu.stat", "throttled_time 77\n", 77),
        ("0::/", "other", "", 0),
    ],
)
def test_quotas_of_both_versions(
    group: str, file: str, text: str, expected: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)
    groups = tmp_path / "groups"
    groups.write_text(group)
    monkeypatch.setattr(host, "_CGROUPS", tmp_path)
    monkeypatch.setattr(host, "_CGROUP", groups)
    host._quota_file.cache_clear()
    try:
        assert host._throttled_ns() == expected
    finally:
        host._quota_file.cache_clear()

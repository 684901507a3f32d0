"""Threads of a model step: no more than the processors, and the quotas of control groups, allow."""

import os
from pathlib import Path

import pytest

from pyengine.model.cpu.cores import usable_cores

EIGHT = set(range(8))


@pytest.fixture(autouse=True)
def _processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: EIGHT)


def cores(folder: Path, own: str = "", **files: str) -> int:
    """The usable cores with these files of control groups; ``__`` in a name is a folder's end."""
    (folder / "own").write_text(own)
    for name, text in files.items():
        path = folder / "groups" / name.replace("__", "/").replace("DOT", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return usable_cores(folder / "none", folder / "groups", folder / "own")


def test_threads_of_one_core_count_once(tmp_path: Path) -> None:
    for processor in EIGHT:
        path = tmp_path / f"cpu{processor}/topology/thread_siblings_list"
        path.parent.mkdir(parents=True)
        path.write_text(f"{processor % 4},{processor % 4 + 4}")
    assert usable_cores(tmp_path, tmp_path, tmp_path / "none") == 4


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("50000 100000", 1), ("200000 100000", 2), ("250000 100000", 3),
     ("6400000 100000", 8), ("", 8)],
)  # fmt: skip
def test_quota_of_version_2(tmp_path: Path, quota: str, expected: int) -> None:
    assert cores(tmp_path, "0::/\n", cpuDOTmax=quota) == expected


def test_quota_of_a_group_around_the_own_one(tmp_path: Path) -> None:
    own = "0::/system.slice/pyengine.service\n"
    files = {
        "system.slice__cpuDOTmax": "200000 100000",
        "system.slice__pyengine.service__cpuDOTmax": "max 100000",
    }
    assert cores(tmp_path, own, **files) == 2


@pytest.mark.parametrize(("quota", "expected"), [("-1", 8), ("150000", 2)])
def test_quota_of_version_1(tmp_path: Path, quota: str, expected: int) -> None:
    files = {
        "cpu,cpuacct__cpuDOTcfs_quota_us": quota,
        "cpu,cpuacct__cpuDOTcfs_period_us": "100000",
    }
    # The name is that outside of the container, whose tree begins at its own group.
    own = "4:cpu,cpuacct:/docker/0123\n3:memory:/docker/0123\n"
    assert cores(tmp_path, own, **files) == expected

"""Threads of a model step: no more than the processors, and the quotas of control groups, allow."""

import os
from pathlib import Path

import pytest

from pyengine.model.cpu.cores import node_words, numa_nodes, stay_on_one_node, usable_cores

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


def numa(folder: Path, **nodes: tuple[str, int]) -> Path:
    """A machine's nodes: the processors of each, and its free GiB of 64."""
    for name, (processors, free) in nodes.items():
        (folder / name).mkdir(parents=True)
        (folder / name / "cpulist").write_text(f"{processors}\n")
        (folder / name / "meminfo").write_text(
            f"Node 0 MemTotal:       {64 << 20} kB\nNode 0 MemFree:        {free << 20} kB\n"
        )
    return folder


@pytest.mark.parametrize(
    ("threads", "memory_gib", "expected"),
    [(1, 20, {2, 3, 6, 7}), (4, 20, {2, 3, 6, 7}), (5, 20, EIGHT), (1, 70, EIGHT)],
)
def test_an_engine_stays_on_a_node_that_has_room_for_it(
    threads: int, memory_gib: int, expected: set[int], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    own = [EIGHT]
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: own[-1])
    monkeypatch.setattr(os, "sched_setaffinity", lambda _, processors: own.append(processors))
    nodes = numa(tmp_path, node0=("0-1,4-5", 10), node1=("2-3,6-7", 30), node2=("64-95", 60))
    assert numa_nodes(nodes) == {0: {0, 1, 4, 5}, 1: {2, 3, 6, 7}}
    stay_on_one_node(threads, memory_gib << 30, nodes)
    assert own[-1] == expected
    assert node_words(nodes) == (", NUMA nodes 0, 1" if expected == EIGHT else ", NUMA node 1")


def test_a_machine_of_one_node_says_nothing_of_it(tmp_path: Path) -> None:
    assert node_words(numa(tmp_path, node0=("0-7", 10))) == ""
    assert node_words(tmp_path / "none") == ""

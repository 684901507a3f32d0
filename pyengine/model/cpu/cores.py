"""How many cores this process may use, and of which NUMA node."""

import math
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")
GROUPS = Path("/sys/fs/cgroup")
OWN_GROUPS = Path("/proc/self/cgroup")
NODES = Path("/sys/devices/system/node")


def usable_cores(
    topology: Path = TOPOLOGY, groups: Path = GROUPS, own_groups: Path = OWN_GROUPS
) -> int:
    """Cores that the process may use: of its processors, within the quota of its control groups.

    Threads of one core count once, since they share its arithmetic units: a second one of a kernel
    gains nothing. A quota, as containers have it, stops all threads for the rest of each period
    once it is used up, so more threads than it allows only wait for one another.
    """
    cores = set()
    for processor in os.sched_getaffinity(0):
        core = str(processor)
        with suppress(OSError):
            core = (topology / f"cpu{processor}/topology/thread_siblings_list").read_text()
        cores.add(core)
    quota = min(_quotas(groups, own_groups), default=math.inf)
    return max(1, min(len(cores), math.ceil(quota) if quota < math.inf else len(cores)))


def _quotas(groups: Path, own_groups: Path) -> Iterator[float]:
    """The quotas in CPUs of the process's control groups and of those around them."""
    try:
        lines = own_groups.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has one tree, version 1 one for each set of controllers.
        tree = groups / controllers if controllers else groups
        own = tree / name.lstrip("/")
        # In a container the name may be that outside, and the tree begins at its own group.
        for group in {tree, own, *(each for each in own.parents if tree in each.parents)}:
            yield from _quota(group)


def _quota(group: Path) -> Iterator[float]:
    with suppress(OSError, ValueError):
        limit, period = (group / "cpu.max").read_text().split()
        if limit != "max":
            yield int(limit) / int(period)
    with suppress(OSError, ValueError):
        limit = (group / "cpu.cfs_quota_us").read_text()
        if int(limit) > 0:
            yield int(limit) / int((group / "cpu.cfs_period_us").read_text())


def numa_nodes(nodes: Path = NODES) -> dict[int, set[int]]:
    """The processors of each NUMA node that this thread may use, where it may use some."""
    usable, found = os.sched_getaffinity(0), {}
    for folder in nodes.glob("node[0-9]*"):
        with suppress(OSError, ValueError):
            parts = (part.split("-") for part in (folder / "cpulist").read_text().split(","))
            own = {cpu for ends in parts for cpu in range(int(ends[0]), int(ends[-1]) + 1)}
            if own := own & usable:
                found[int(folder.name[4:])] = own
    return found


def stay_on_one_node(threads: int, memory_bytes: int, nodes: Path = NODES) -> None:
    """Keep this thread, and those that it starts, on the NUMA node with most free memory.

    What they write first is in that node's memory, then. Where no node has so many processors or so
    much memory, nothing changes.
    """
    found = numa_nodes(nodes)
    free = {
        node: _memory(nodes, node, "MemFree:")
        for node, own in found.items()
        if len(own) >= threads and _memory(nodes, node, "MemTotal:") >= memory_bytes
    }
    if len(found) > 1 and free:
        os.sched_setaffinity(0, found[max(free, key=lambda node: (len(found[node]), free[node]))])


def node_words(nodes: Path = NODES) -> str:
    """The NUMA nodes of this thread, behind a comma; nothing where the machine has one."""
    own = sorted(numa_nodes(nodes))
    if not own or len(list(nodes.glob("node[0-9]*"))) == 1:
        return ""
    return f", NUMA node{'s' if len(own) > 1 else ''} {', '.join(map(str, own))}"


def _memory(nodes: Path, node: int, field: str) -> int:
    words = (nodes / f"node{node}" / "meminfo").read_text().split()
    return int(words[words.index(field) + 1]) << 10

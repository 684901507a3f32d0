"""How many cores this process may use."""

import os
from contextlib import suppress
from pathlib import Path

TOPOLOGY = Path("/sys/devices/system/cpu")


def physical_cores(topology: Path = TOPOLOGY) -> int:
    """Cores among the processors that the process may run on; threads of one core count once.

    Threads of one core share its arithmetic units: a second one of a kernel gains nothing.
    """
    cores = set()
    for processor in os.sched_getaffinity(0):
        core = str(processor)
        with suppress(OSError):
            core = (topology / f"cpu{processor}/topology/thread_siblings_list").read_text()
        cores.add(core)
    return len(cores)

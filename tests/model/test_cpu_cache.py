"""The memory of the KV cache on the CPU."""

from pathlib import Path

import numpy as np

from pyengine.model.cpu.pool import cache_array


def test_a_cache_lies_in_private_memory_of_huge_pages() -> None:
    array = cache_array(3, 1 << 20, dtype=np.dtype(np.float32))
    assert array.shape == (3, 1 << 20)
    assert not array.any()
    permissions, flags = _mapping(array.ctypes.data)
    # Pages that processes could share are small by default, whatever is asked for.
    assert permissions == "rw-p"
    assert "hg" in flags or not Path("/sys/kernel/mm/transparent_hugepage").exists()


def _mapping(address: int) -> tuple[str, list[str]]:
    """Permissions and flags of the mapping of this process that has an address."""
    permissions = ""
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first, *rest = line.split()
        if first == "VmFlags:" and permissions:
            return permissions, rest
        if "-" in first and not first.endswith(":"):
            start, end = (int(part, 16) for part in first.split("-"))
            permissions = rest[0] if start <= address < end else ""
    raise AssertionError("no mapping has it")

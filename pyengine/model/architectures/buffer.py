"""The memory that layers read and write."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Buffer:
    """A buffer [max rows, width] of a fixed address; a call takes the first rows.

    Attributes:
        tensor: All of it: numpy's array on the CPU, a tensor of torch on its devices.
        kernel: The same memory as the device's kernels take it.
    """

    tensor: Any
    kernel: Any

"""A kernel's case: its inputs, their size, and the implementations."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from benches.gpu.floors import Ceilings
from benches.gpu.part import Bench
from benches.gpu.timing import Work


@dataclass(frozen=True)
class Case:
    """One kernel at one size.

    Attributes:
        kernel: Its name.
        at: The size, in words.
        make: By implementation (``triton``, ``torch``, ``flashinfer`` ...): makes its works, alike
            but for what they work on, so that the cache does not hold it all.
        read: Bytes that it must read.
        copied: Bytes that it must read or write where it does both.
        flops: Operations that it must do.
    """

    kernel: str
    at: str
    make: "dict[str, Make]"
    read: float = 0.0
    copied: float = 0.0
    flops: float = 0.0

    def floor_s(self, ceilings: Ceilings) -> float:
        """The least that it can take."""
        return ceilings.seconds(self.read, self.copied, self.flops)


Make = Callable[[], Sequence[Work]]


def by(
    bench: Bench, module: str, name: str, *, both: bool = False
) -> dict[str, Callable[..., Any]]:
    """The implementations of a kernel of ``pyengine.kernels``.

    On a GPU that in Triton, and its reference in torch if ``both``: not where that looks at numbers
    on the device, and so waits for it. On the CPU the reference alone.
    """
    found = import_module(f"pyengine.kernels.{module}")
    implementations = {"torch": getattr(found, f"{name}_reference")}
    if not bench.cuda:
        return implementations
    return {"triton": getattr(found, name)} | (implementations if both else {})

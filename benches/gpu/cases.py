"""A kernel's case: what it works on, how much that is, and who does it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
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
    make: dict[str, Callable[[], Sequence[Work]]]
    read: float = 0.0
    copied: float = 0.0
    flops: float = 0.0

    def floor_s(self, ceilings: Ceilings) -> float:
        """The least that it can take."""
        return ceilings.seconds(self.read, self.copied, self.flops)


def by(bench: Bench, module: str, name: str) -> dict[str, Callable[..., Any]]:
    """The implementations of a kernel of ``pyengine.kernels``: on a GPU that in Triton, too.

    What is missing fails where it is asked for, so that it becomes a note in its row.
    """

    def call(attribute: str) -> Callable[..., Any]:
        from importlib import import_module

        found: Callable[..., Any] = getattr(import_module(f"pyengine.kernels.{module}"), attribute)
        return found

    def late(attribute: str) -> Callable[..., Any]:
        return lambda *arguments: call(attribute)(*arguments)

    implementations = {"torch": late(f"{name}_reference")}
    return {"triton": late(name)} | implementations if bench.cuda else implementations

"""Where the calls of a model's layers on the CPU go: at once to the kernels, or into a program."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyengine._core import CpuKernels, CpuProgram


class Executor:
    """Shared by the layers of a model. One thread at a time.

    Attributes:
        kernels: The Rust kernels and their threads.
        target: Takes the calls: the kernels, which compute at once, or a program, which records
            them.
    """

    def __init__(self, kernels: CpuKernels) -> None:
        self.kernels = kernels
        self.target: CpuKernels | CpuProgram = kernels

    @contextmanager
    def recording(self) -> Iterator[CpuProgram]:
        """A context: a new program records the calls of the layers made inside."""
        program = CpuProgram(self.kernels)
        self.target = program
        try:
            yield program
        finally:
            self.target = self.kernels

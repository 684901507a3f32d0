"""The programs that the calls of a model's layers on the CPU are recorded in."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyengine._core import CpuKernels, CpuProgram


class Executor:
    """Shared by the layers of a model. One thread at a time."""

    def __init__(self, kernels: CpuKernels) -> None:
        self._kernels = kernels
        self._program: CpuProgram | None = None

    @property
    def program(self) -> CpuProgram:
        """The program that records now; the number of rows is given when it runs."""
        if self._program is None:
            raise RuntimeError("layers on the CPU are called inside Executor.recording() alone")
        return self._program

    @contextmanager
    def recording(self) -> Iterator[CpuProgram]:
        """A context: a new program records the calls of the layers made inside."""
        self._program = program = CpuProgram(self._kernels)
        try:
            yield program
        finally:
            self._program = None


@contextmanager
def run_once(kernels: CpuKernels, rows: int) -> Iterator[CpuProgram]:
    """A context: the kernels that its program records are run on ``rows`` rows at its end."""
    program = CpuProgram(kernels)
    yield program
    program.run(rows)

"""Launches recorded from the calls that the engine makes, and compiled for an H200 as its launcher
would: no GPU is needed. Triton is not to interpret where this is used.

Tensors are of torch's ``meta`` device, which have shapes and no memory, so that a cache may have
the size that it has on a GPU. Numbers are taken as they are, so that what Triton makes of them (a
one is a constant, a multiple of 16 is known as such) is what it would make of them there.
"""

import re
import subprocess
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest.mock import patch

from triton import compiler, knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import make_backend
from triton.runtime.jit import JITFunction, create_function_from_signature

TARGET = GPUTarget("cuda", 90, 32)


@dataclass(frozen=True)
class Launch:
    """A kernel as it was asked for."""

    kernel: Any
    grid: tuple[int, ...]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]


@dataclass(frozen=True)
class Code:
    """What a launch was compiled to.

    Attributes:
        name: Of the kernel.
        ptx: Its text.
        warps: Of a program.
        stages: Of its pipelined loads.
        registers: Of a thread.
        stack: Bytes of a thread in local memory: spilled registers, and arrays.
        shared: Bytes of a program in shared memory.
    """

    name: str
    ptx: str
    warps: int
    stages: int
    registers: int
    stack: int
    shared: int

    def widest(self, operation: str) -> int:
        """Bytes of the widest access to global memory by a thread: ``ld`` or ``st``."""
        found = re.findall(rf"{operation}\.global(?:\.\w+)*?(?:\.v(\d))?\.b(\d+)", self.ptx)
        return max((int(count or 1) * int(bits) // 8 for count, bits in found), default=0)

    @property
    def copied(self) -> int:
        """Bytes of the widest asynchronous copy by a thread."""
        found = re.findall(r"cp\.async\.c[ag]\.shared\.global.*?, (0x\w+)", self.ptx)
        return max((int(size, 16) for size in found), default=0)

    @property
    def product(self) -> str:
        """What multiplies matrices: ``wgmma``, ``mma`` or ``fma``."""
        return "wgmma" if "wgmma" in self.ptx else "mma" if "mma.sync" in self.ptx else "fma"

    @property
    def exact(self) -> bool:
        """Whether every operation rounds on its own, as IEEE has it."""
        return not any(sign in self.ptx for sign in ("fma.rn.f32", ".ftz", "div.full", "approx"))

    @property
    def chained(self) -> bool:
        """Whether it lets the next kernel be launched, and then waits for those before it."""
        lets, waits = (
            self.ptx.find(f"griddepcontrol.{what}") for what in ("launch_dependents", "wait")
        )
        written = re.search(r"(st|atom|red)\.\S*global", self.ptx)
        return written is not None and 0 <= lets < waits < written.start()

    def figures(self, launch: Launch) -> dict[str, Any]:
        """What can be said of the code in numbers; ``tile``: query rows, where it attends."""
        return {
            "kernel": self.name,
            "tile": launch.kwargs.get("ROWS", 0),
            "warps": self.warps,
            "stages": self.stages,
            "registers": self.registers,
            "stack": self.stack,
            "shared": self.shared,
            "load": self.widest("ld"),
            "store": self.widest("st"),
            "copied": self.copied,
            "product": self.product,
            "exact": self.exact,
            "chained": self.chained,
        }


def launches(work: Callable[[], None]) -> list[Launch]:
    """What ``work`` would launch."""
    found: list[Launch] = []

    def record(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> None:
        found.append(Launch(self, tuple(grid), args, kwargs))

    with patch.object(JITFunction, "run", record):
        work()
    return found


@cache
def _backend() -> Any:
    return make_backend(TARGET)


def compile_launch(launch: Launch) -> Code:
    """As Triton's launcher compiles it on the target; and what came of it."""
    kernel, backend, given = launch.kernel, _backend(), dict(launch.kwargs)
    given["debug"] = False
    bind = create_function_from_signature(kernel.signature, kernel.params, backend)
    bound, specialization, options = bind(*launch.args, **given)
    parsed, signature, constants, attributes = kernel._pack_args(
        backend, given, bound, specialization, options
    )
    source = compiler.ASTSource(kernel, signature, constants, attributes)
    done = compiler.compile(source, target=TARGET, options=parsed.__dict__)
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(done.asm["cubin"])
        file.flush()
        tool = knobs.nvidia.cuobjdump.path
        usage = subprocess.run(
            [tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True
        ).stdout
    number = {name: int(value) for name, value in re.findall(r"(REG|STACK|LOCAL):(\d+)", usage)}
    return Code(
        kernel.__name__, str(done.asm["ptx"]), done.metadata.num_warps, done.metadata.num_stages,
        number["REG"], number["STACK"] + number["LOCAL"], done.metadata.shared,
    )  # fmt: skip

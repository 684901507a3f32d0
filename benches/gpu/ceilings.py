"""What can the device do at best: move bytes, read bytes, multiply matrices, start kernels?

Measured first; the floors of everything else are over these. Decode only reads, and reading alone
is faster than copying on some memories, so that both are measured.
"""

from collections.abc import Generator
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

import torch

from benches.gpu.part import Bench, Part
from benches.gpu.timing import Work

# Rows, inner and columns: Llama-3-8B's gate and up for a chunk of a prompt, and squares.
MATMULS = ((8192, 8192, 8192), (8192, 4096, 28_672), (4096, 4096, 4096), (16_384, 4096, 4096))


@dataclass(frozen=True)
class Row:
    """One ceiling.

    Attributes:
        what: ``copy`` (bytes read and bytes written), ``read``, ``matmul`` (operations) or
            ``launch`` (kernels one after the other).
        size: Of the buffer or the matrices.
        time_s: Of one.
        per_second: Bytes, operations or kernels a second.
        note: Why there is no figure.
    """

    what: str
    size: str
    time_s: float | None
    per_second: float | None
    note: str | None = None


def run(bench: Bench) -> Generator[Row]:
    """Each at a few sizes; the best of them is the ceiling."""
    dtype = torch.bfloat16 if bench.cuda else torch.float32
    for mebibytes in (1,) if bench.tiny else (512, 2048, 8192):
        yield from memory(bench, mebibytes)
    for m, k, n in ((256, 256, 256),) if bench.tiny else MATMULS:
        a = torch.randn(m, k, dtype=dtype, device=bench.device)
        b = torch.randn(n, k, dtype=dtype, device=bench.device)
        out = torch.empty(m, n, dtype=dtype, device=bench.device)
        product = bench.clock.time([partial(torch.mm, a, b.t(), out=out)]).seconds
        size = f"{m} x {k} x {n} {str(dtype).removeprefix('torch.')}"
        yield Row("matmul", size, product, 2 * m * k * n / product)
    one = torch.zeros(1, device=bench.device)
    launch = bench.clock.time([lambda: one.add_(1.0)] * 32).seconds
    yield Row("launch", "one element", launch, 1 / launch)


def memory(bench: Bench, mebibytes: int) -> Generator[Row]:
    """Copying and reading a buffer of ``mebibytes`` MiB."""
    source = torch.ones(mebibytes << 18, dtype=torch.float32, device=bench.device)
    target = torch.empty_like(source)
    copy = bench.clock.time([lambda: target.copy_(source)]).seconds
    yield Row("copy", f"{mebibytes} MiB", copy, 2 * source.nbytes / copy)
    for name, work in readers(source, bench.cuda).items():
        read = bench.clock.time([work]).seconds
        yield Row("read", f"{mebibytes} MiB, {name}", read, source.nbytes / read)


def readers(buffer: torch.Tensor, cuda: bool) -> dict[str, Work]:
    """Reductions of a buffer; which of them reads fastest depends on the device."""
    rows = buffer.view(-1, 4096)
    out = torch.empty(len(rows), dtype=buffer.dtype, device=buffer.device)
    works: dict[str, Work] = {"torch.sum": lambda: torch.sum(rows, dim=1, out=out)}
    if cuda and find_spec("triton"):
        from benches.gpu.reading import read

        works["Triton"] = lambda: read(buffer, out)
    return works


PART = Part("ceilings", "What can the device do at best?", 20.0, Row, run)

"""A kernel that only reads: what decode does with weights and keys. In Triton."""

import torch

from pyengine.kernels.language import tl, triton

BLOCK = 4096
LOOPS = 16


@triton.jit  # type: ignore[untyped-decorator]
def read_kernel(x_ptr, out_ptr, BLOCK: tl.constexpr, LOOPS: tl.constexpr):  # type: ignore[no-untyped-def]  # noqa: N803
    """One sum a program, of ``LOOPS`` blocks that lie together."""
    program = tl.program_id(0)
    start = program.to(tl.int64) * (BLOCK * LOOPS)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(LOOPS):
        total += tl.load(x_ptr + start + at * BLOCK + tl.arange(0, BLOCK))
    tl.store(out_ptr + program, tl.sum(total, axis=0))


def read(x: torch.Tensor, out: torch.Tensor) -> None:
    """Sum float32 ``x``, ``BLOCK * LOOPS`` elements at a time, into ``out``; the rest is left."""
    programs = x.numel() // (BLOCK * LOOPS)
    read_kernel[(programs,)](x, out, BLOCK=BLOCK, LOOPS=LOOPS, num_warps=8, enable_fp_fusion=True)

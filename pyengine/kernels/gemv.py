"""A matrix product with few rows: every weight is read once, and that is all that it costs.

Bytes moved: those of the weight, out * in numbers; x and the result are small beside it, and x
comes out of the cache. A library is made for many rows and may be slower where there are one to
eight; it may also be as fast. So this is only used for shapes for which it was measured and faster.

A program has ``ROWS`` rows of the weight, and each of its threads a part of the columns, whose
products it adds up in float32; the threads' sums are added in the same order always. Nothing is
split between programs, so the bits depend on the shapes alone. With more rows of x there are more
multiplications for each byte: at eight some 20e12 fused ones a second to keep up with 4.8 TB/s of
bfloat16, which is more than half of what an H200 has outside of its tensor cores.

From three rows on the sums of a thread fill some 200 registers, so that two programs fit on a
multiprocessor, with 8 to 16 KB of weights on their way: too few for all of the bandwidth. There a
library is expected to win.
"""

import torch

from pyengine.kernels.language import tl, triton

MAX_ROWS = 8
"""The most rows of x."""

ROWS = 4
"""Rows of the weight that a program has."""

SUMS = 16_384
"""Sums that a program keeps at most: rows of x * ``ROWS`` * columns at a time."""


@triton.jit
def gemv_kernel(
    x_ptr, x_stride, weight_ptr, weight_stride, bias_ptr, out_ptr, out_stride,
    num_in, num_out, M: tl.constexpr, M_BLOCK: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """One program for ``ROWS`` rows of the weight; M rows of x."""
    m = tl.arange(0, M_BLOCK)[:, None, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :, None]
    k = tl.arange(0, BLOCK)[None, None, :]
    sums = tl.zeros([M_BLOCK, ROWS, BLOCK], tl.float32)
    x_ptr += m * x_stride
    weight_ptr += row.to(tl.int64) * weight_stride
    for start in range(0, num_in, BLOCK):
        at = start + k
        inside = at < num_in
        weight = tl.load(weight_ptr + at, mask=inside & (row < num_out), other=0.0)
        x = tl.load(x_ptr + at, mask=inside & (m < M), other=0.0)
        sums += x.to(tl.float32) * weight.to(tl.float32)
    total = tl.sum(sums, axis=2)  # [M_BLOCK, ROWS]
    m = tl.arange(0, M_BLOCK)[:, None]
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]
    if HAS_BIAS:
        total += tl.load(bias_ptr + row, mask=row < num_out, other=0.0).to(tl.float32)
    place = out_ptr + m * out_stride + row
    tl.store(place, total.to(out_ptr.dtype.element_ty), mask=(m < M) & (row < num_out))


def gemv(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """X W^T + b for few rows, summed in float32 and rounded once.

    Queues one kernel on the current stream; can be captured. A row's result is the same bits
    whatever other rows there are, as long as there are as many.

    Args:
        x: [m, in], m from 0 to 8, each row in one piece; float32, bfloat16 or float16.
        weight: [out, in], like ``x``.
        out: [m, out], written; of one of these types.
        bias: [out], or None.

    Raises:
        ValueError: Shapes or strides are others.
    """
    _check(x, weight, out, bias)
    rows, (num_out, num_in) = len(x), weight.shape
    if rows == 0 or num_out == 0:
        return
    m = triton.next_power_of_2(rows)
    block = min(SUMS // (m * ROWS), 1024, triton.next_power_of_2(max(num_in, 1)))
    gemv_kernel[(triton.cdiv(num_out, ROWS),)](
        x, x.stride(0), weight, weight.stride(0), x if bias is None else bias,
        out, out.stride(0), num_in, num_out,
        M=rows, M_BLOCK=m, HAS_BIAS=bias is not None, ROWS=ROWS, BLOCK=block,
        enable_fp_fusion=True,
    )  # fmt: skip


def gemv_reference(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None = None
) -> None:
    """As :func:`gemv`, in torch; allocates the weight in float32."""
    _check(x, weight, out, bias)
    total = x.float() @ weight.float().T
    out.copy_(total if bias is None else total + bias.float())


def _check(
    x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, bias: torch.Tensor | None
) -> None:
    if x.shape != (len(x), weight.shape[1]) or out.shape != (len(x), weight.shape[0]):
        raise ValueError(f"x {[*x.shape]}, weight {[*weight.shape]}, out {[*out.shape]}")
    if len(x) > MAX_ROWS:
        raise ValueError(f"{len(x)} rows: this kernel takes at most {MAX_ROWS}")
    if bias is not None and (bias.shape != weight.shape[:1] or not bias.is_contiguous()):
        raise ValueError(f"the bias must be [{weight.shape[0]}], in one piece")
    for tensor in (x, weight, out):
        if tensor.stride(1) != 1 and tensor.shape[1] > 1:
            raise ValueError("each row of x, weight and out must be in one piece")

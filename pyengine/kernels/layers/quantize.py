"""Rows of activations as float8_e4m3fn, each with a scale of its own.

A row's largest number becomes 448, the largest of float8_e4m3fn; all is float32 up to the one
rounding. Two passes over a row, the second out of the cache.

Bytes moved: rows * width numbers read, as many bytes written; 4 for each row's scale.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton

BLOCK = 2048
"""Numbers of a row that a program works on at a time."""

FLOAT8 = torch.float8_e4m3fn
LARGEST = 448.0
_SMALLEST = 2.0**-100  # of a row's largest number: a scale must not be 0


@triton.jit
def quantize_rows_kernel(
    x_ptr, x_stride, out_ptr, out_stride, scale_ptr, width, LEAST: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """One program a row."""
    row = tl.program_id(0).to(tl.int64)
    x_ptr += row * x_stride
    out_ptr += row * out_stride
    wait_for_inputs(CHAINED)
    largest = tl.zeros([BLOCK], tl.float32)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        largest = tl.maximum(largest, tl.abs(x))
    scale = tl.div_rn(tl.maximum(tl.max(largest, axis=0), LEAST), 448.0)
    tl.store(scale_ptr + row, scale)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        x = tl.div_rn(x, scale)
        x = tl.minimum(tl.maximum(x, -448.0), 448.0)
        tl.store(out_ptr + column, x.to(out_ptr.dtype.element_ty), mask=column < width)


def quantize_rows(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    """``x`` is about ``out * scales``.

    Queues one kernel on the current stream; can be captured.

    Args:
        x: [rows, width], float32, bfloat16 or float16, each row in one piece, without NaN.
        out: float8_e4m3fn [rows, width], each row in one piece; written.
        scales: float32 [rows, 1], in one piece; written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, out, scales)
    rows, width = x.shape
    if rows and width:
        block = min(BLOCK, triton.next_power_of_2(width))
        quantize_rows_kernel[(rows,)](
            x, x.stride(0), out, out.stride(0), scales, width,
            LEAST=_SMALLEST, BLOCK=block, enable_fp_fusion=False, **chained(x.device),
        )  # fmt: skip


def quantize_rows_reference(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    """As :func:`quantize_rows`, in torch."""
    _check(x, out, scales)
    numbers = x.float()
    scales.copy_(numbers.abs().amax(dim=1, keepdim=True).clamp(min=_SMALLEST) / LARGEST)
    out.copy_((numbers / scales).clamp(-LARGEST, LARGEST))


def _check(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    if x.ndim != 2 or x.shape != out.shape or scales.shape != (len(x), 1):
        raise ValueError(f"x {[*x.shape]}, out {[*out.shape]}, scales {[*scales.shape]}")
    if out.dtype != FLOAT8 or scales.dtype != torch.float32:
        raise ValueError(f"out must be {FLOAT8} and the scales float32")
    if (x.stride(1) != 1 or out.stride(1) != 1) and x.shape[1] > 1:
        raise ValueError("each row of x and out must be in one piece")
    if not scales.is_contiguous():
        raise ValueError("scales must be in one piece")

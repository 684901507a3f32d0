"""Rows of activations as float8_e4m3fn: each with a scale of its own, or each group of neighbours.

The largest number of a row or group becomes 448, the largest of float8_e4m3fn; all is float32 up to
the one rounding. Whole rows take two passes, the second out of the cache.

Bytes moved: rows * width numbers read, as many bytes written; 4 for each scale.
"""

import math

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
    x_ptr, x_stride, out_ptr, out_stride, scale_ptr, width, bound, LEAST: tl.constexpr,
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
    scale = tl.div_rn(tl.minimum(tl.maximum(tl.max(largest, axis=0), LEAST), bound), 448.0)
    tl.store(scale_ptr + row, scale)
    for start in range(0, width, BLOCK):
        column = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + column, mask=column < width, other=0.0).to(tl.float32)
        x = tl.div_rn(x, scale)
        x = tl.minimum(tl.maximum(x, -448.0), 448.0)
        tl.store(out_ptr + column, x.to(out_ptr.dtype.element_ty), mask=column < width)


def quantize_rows(
    x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, bound: float = math.inf
) -> None:
    """``x`` is about ``out * scales``, but for what is beyond ``bound``, which becomes so.

    Queues one kernel on the current stream; can be captured.

    Args:
        x: [rows, width], float32, bfloat16 or float16, each row in one piece, without NaN.
        out: float8_e4m3fn [rows, width], each row in one piece; written.
        scales: float32 [rows, 1], in one piece; written.
        bound: Above 0.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, out, scales)
    rows, width = x.shape
    if rows and width:
        block = min(BLOCK, triton.next_power_of_2(width))
        quantize_rows_kernel[(rows,)](
            x, x.stride(0), out, out.stride(0), scales, width, float(bound),
            LEAST=_SMALLEST, BLOCK=block, enable_fp_fusion=False, **chained(x.device),
        )  # fmt: skip


def quantize_rows_reference(
    x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, bound: float = math.inf
) -> None:
    """As :func:`quantize_rows`, in torch."""
    _check(x, out, scales)
    numbers = x.float()
    largest = numbers.abs().amax(dim=1, keepdim=True)
    scales.copy_(largest.clamp(min=_SMALLEST).clamp(max=bound) / LARGEST)
    out.copy_((numbers / scales).clamp(-LARGEST, LARGEST))


@triton.jit
def quantize_groups_kernel(
    x_ptr, x_stride, out_ptr, out_stride, scale_ptr, scale_stride, width, bound,
    LEAST: tl.constexpr, GROUP: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of rows and blocks of their numbers, of whole groups each."""
    row = tl.program_id(0).to(tl.int64)
    start = tl.program_id(1) * BLOCK
    column = start + tl.arange(0, BLOCK)
    wait_for_inputs(CHAINED)
    x = tl.load(x_ptr + row * x_stride + column, mask=column < width, other=0.0).to(tl.float32)
    x = tl.reshape(x, [BLOCK // GROUP, GROUP])
    scale = tl.div_rn(tl.minimum(tl.maximum(tl.max(tl.abs(x), axis=1), LEAST), bound), 448.0)
    group = start // GROUP + tl.arange(0, BLOCK // GROUP)
    tl.store(scale_ptr + group * scale_stride + row, scale, mask=group * GROUP < width)
    x = tl.div_rn(x, tl.broadcast_to(scale[:, None], [BLOCK // GROUP, GROUP]))
    x = tl.reshape(tl.minimum(tl.maximum(x, -448.0), 448.0), [BLOCK])
    out_ptr += row * out_stride
    tl.store(out_ptr + column, x.to(out_ptr.dtype.element_ty), mask=column < width)


def quantize_groups(
    x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, group: int, bound: float = math.inf
) -> None:
    """``x`` is about ``out`` times the scales of its groups, but for what is beyond ``bound``,
    which becomes so.

    Queues one kernel on the current stream; can be captured.

    Args:
        x: [rows, width], float32, bfloat16 or float16, each row in one piece, without NaN.
        out: float8_e4m3fn [rows, width], each row in one piece; written.
        scales: float32 [groups of a row, rows], those of a group in one piece; written.
        group: Neighbouring numbers that share a scale, a power of two; the last may be fewer.
        bound: Above 0.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check_groups(x, out, scales, group)
    rows, width = x.shape
    if rows and width:
        block = max(group, min(BLOCK, triton.next_power_of_2(width)))
        quantize_groups_kernel[(rows, triton.cdiv(width, block))](
            x, x.stride(0), out, out.stride(0), scales, scales.stride(0), width, float(bound),
            LEAST=_SMALLEST, GROUP=group, BLOCK=block, enable_fp_fusion=False, **chained(x.device),
        )  # fmt: skip


def quantize_groups_reference(
    x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, group: int, bound: float = math.inf
) -> None:
    """As :func:`quantize_groups`, in torch."""
    _check_groups(x, out, scales, group)
    rows, width = x.shape
    numbers = torch.nn.functional.pad(x.float(), (0, -width % group))
    numbers = numbers.view(rows, len(scales), group)
    scale = numbers.abs().amax(dim=2, keepdim=True).clamp(min=_SMALLEST).clamp(max=bound) / LARGEST
    scales.copy_(scale[:, :, 0].t())
    out.copy_((numbers / scale).clamp(-LARGEST, LARGEST).flatten(1)[:, :width])


def _check_groups(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor, group: int) -> None:
    if x.ndim != 2 or x.shape != out.shape or scales.shape != (-(-x.shape[1] // group), len(x)):
        raise ValueError(f"x {[*x.shape]}, out {[*out.shape]}, scales {[*scales.shape]} by {group}")
    _check_numbers(x, out, scales)
    if group & (group - 1) or (len(x) > 1 and scales.stride(1) != 1):
        raise ValueError("a group must be a power of two, and its scales in one piece")


def _check(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    if x.ndim != 2 or x.shape != out.shape or scales.shape != (len(x), 1):
        raise ValueError(f"x {[*x.shape]}, out {[*out.shape]}, scales {[*scales.shape]}")
    _check_numbers(x, out, scales)
    if not scales.is_contiguous():
        raise ValueError("scales must be in one piece")


def _check_small(x: torch.Tensor, out: torch.Tensor) -> None:
    if x.ndim != 2 or x.shape != out.shape:
        raise ValueError(f"x {[*x.shape]}, out {[*out.shape]}")
    _check_rows(x, out)


def _check_numbers(x: torch.Tensor, out: torch.Tensor, scales: torch.Tensor) -> None:
    if scales.dtype != torch.float32:
        raise ValueError("the scales must be float32")
    _check_rows(x, out)


def _check_rows(x: torch.Tensor, out: torch.Tensor) -> None:
    if out.dtype != FLOAT8:
        raise ValueError(f"out must be {FLOAT8}")
    if (x.stride(1) != 1 or out.stride(1) != 1) and x.shape[1] > 1:
        raise ValueError("each row of x and out must be in one piece")

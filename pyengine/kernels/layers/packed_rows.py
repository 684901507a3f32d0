"""Rows of a quantized table, such as the embeddings of tokens, as the numbers that they mean.

Bytes moved: the values and scales of the rows that are looked up, and the numbers written. Scales
lie group by group, so that those of a row are read one by one.
"""

from dataclasses import replace

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.packed_tensor import BLOCKS, PackedTensor, weights_of

ROWS = 8
"""Rows that one program handles."""


@triton.jit(do_not_specialize=["rows"])
def packed_rows_kernel(
    weight_ptr, scale_ptr, zero_ptr, minimum_ptr, index_ptr, out_ptr, out_stride, rows,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    FLOATS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMUMS: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of rows and blocks of their numbers; ``WIDTH`` by ``INPUTS`` are the table's."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[:, None]  # [ROWS, 1]
    at = tl.program_id(1) * BLOCK
    wait_for_inputs(CHAINED)
    index = tl.load(index_ptr + row, mask=row < rows, other=-1)
    # What is no row of the table is not read: it is zeros.
    index = tl.where(index < 0, WIDTH, index)
    numbers = weights_of(
        weight_ptr + index.to(tl.int64) * (INPUTS // (8 // BITS)), scale_ptr, zero_ptr,
        minimum_ptr, at, index, INPUTS, WIDTH, BITS, GROUP, FLOATS, HAS_ZEROS, HAS_MINIMUMS, ROWS,
        BLOCK,
    )  # fmt: skip
    i = at + tl.arange(0, BLOCK)[None, :]
    places = out_ptr + row.to(tl.int64) * out_stride + i
    tl.store(places, numbers.to(out_ptr.dtype.element_ty), mask=(row < rows) & (i < INPUTS))


def packed_rows(weight: PackedTensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """``out[i]`` becomes row ``index[i]`` of ``weight``, rounded once.

    Queues one kernel on the current stream; can be captured.

    Args:
        weight: [rows of the table, width].
        index: int32 or int64 [rows], in one piece, of rows that the table has.
        out: float32, bfloat16 or float16 [rows, width], each row in one piece; written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(weight, index, out)
    rows, (width, inputs) = len(index), weight.shape
    if rows:
        block = BLOCKS[weight.bits]
        packed_rows_kernel[triton.cdiv(rows, ROWS), triton.cdiv(inputs, block)](
            weight.values, weight.scales, weight.zeros, weight.minimums, index, out,
            out.stride(0), rows, INPUTS=inputs, WIDTH=width, BITS=weight.bits, GROUP=weight.group,
            FLOATS=weight.floats, HAS_ZEROS=weight.zeros is not None,
            HAS_MINIMUMS=weight.minimums is not None, ROWS=ROWS, BLOCK=block,
            enable_fp_fusion=False, **chained(index.device),
        )  # fmt: skip


def packed_rows_reference(weight: PackedTensor, index: torch.Tensor, out: torch.Tensor) -> None:
    """As :func:`packed_rows`, in torch."""
    _check(weight, index, out)
    octets = weight.values.view(torch.uint8)
    by_group = (weight.scales, weight.zeros, weight.minimums)
    scales, zeros, minimums = (None if each is None else each[:, index] for each in by_group)
    assert scales is not None
    found = replace(
        weight,
        values=octets[index].view(weight.values.dtype),
        scales=scales,
        zeros=zeros,
        minimums=minimums,
    )
    out.copy_(found.dequantized(out.dtype))


def _check(weight: PackedTensor, index: torch.Tensor, out: torch.Tensor) -> None:
    weight.check()
    if len(weight.shape) != 2 or index.ndim != 1 or out.shape != (len(index), weight.shape[1]):
        raise ValueError(f"table {[*weight.shape]}, index {[*index.shape]}, out {[*out.shape]}")
    if index.dtype not in (torch.int32, torch.int64) or not index.is_contiguous():
        raise ValueError("index must be int32 or int64, in one piece")
    if out.shape[1] > 1 and out.stride(1) != 1:
        raise ValueError("each row of out must be in one piece")

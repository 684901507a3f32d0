"""Rows by the quantized weights of the group that they belong to, such as experts.

Rows lie group by group, and programs find their tile as those of
:mod:`pyengine.kernels.layers.grouped` do; a tile of weights becomes the numbers that it means in
registers, see :mod:`pyengine.kernels.layers.packed_tensor`.

Bytes moved: the weights and scales of the groups that have rows once for each tile of rows, rows
once for each tile of outputs. For few rows bytes of weights are the limit, and instructions beside
them in 4 bits; for many rows instructions and products, so that tiles have as many rows as there is
room for.
"""

import torch

from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.grouped import tile_of_group
from pyengine.kernels.layers.packed_tensor import BLOCKS, PackedTensor, weights_of
from pyengine.kernels.layers.tiles import BORDERS, tile_for

FEW, MANY = tile_for(BORDERS[0]), tile_for(BORDERS[-1])


@triton.jit(do_not_specialize=["groups"])
def grouped_packed_kernel(
    x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, ends_ptr, out_ptr,
    out_stride, groups, INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, FLOATS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr, HAS_BIAS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs; ``INPUTS`` by ``WIDTH`` are a group's."""
    A_BYTE: tl.constexpr = 8 // BITS
    SCALES: tl.constexpr = (INPUTS + GROUP - 1) // GROUP * WIDTH
    mine, first, stop = tile_of_group(ends_ptr, tl.program_id(0), groups, GROUPS_BLOCK, ROWS)
    if mine < groups:
        row = (first + tl.arange(0, ROWS))[None, :]  # [1, ROWS]
        output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
        number = mine.to(tl.int64)
        x_rows = x_ptr + row.to(tl.int64) * x_stride
        weights = weight_ptr + (number * WIDTH + output) * (INPUTS // A_BYTE)
        scale_ptr += number * SCALES
        if HAS_ZEROS:
            zero_ptr += number * SCALES
        if HAS_MINIMUMS:
            minimum_ptr += number * SCALES
        sums = tl.zeros([OUTS, ROWS], tl.float32)
        for at in range(0, INPUTS, BLOCK):
            weight = weights_of(
                weights, scale_ptr, zero_ptr, minimum_ptr, at, output, INPUTS, WIDTH, BITS,
                GROUP, FLOATS, HAS_ZEROS, HAS_MINIMUMS, OUTS, BLOCK,
            )  # fmt: skip
            i = at + tl.arange(0, BLOCK)[:, None]
            x = tl.load(x_rows + i, mask=(row < stop) & (i < INPUTS), other=0.0)  # [BLOCK, ROWS]
            sums = tl.dot(weight.to(x.dtype), x, sums, input_precision="ieee")
        if HAS_BIAS:
            bias = tl.load(bias_ptr + mine * WIDTH + output, mask=output < WIDTH, other=0.0)
            sums += bias.to(tl.float32)
        places = out_ptr + row.to(tl.int64) * out_stride + output
        inside = (row < stop) & (output < WIDTH)
        tl.store(places, sums.to(out_ptr.dtype.element_ty), mask=inside)


def grouped_packed(
    x: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """``out[row] = x[row] weight[group]^T + bias[group]`` for each row of a group.

    Queues one kernel on the current stream; can be captured. Weights are rounded to the type of
    ``x``, sums are float32, rounded once.

    Args:
        x: float32, bfloat16 or float16 [rows, inputs], group by group, each row in one piece.
        weight: [groups, outputs, inputs].
        bias: [groups, outputs] of the type of ``x``, in one piece, or None.
        ends: int32 [groups], where the rows of each group end, not falling; rows behind the last
            belong to none.
        out: [rows, outputs] of the type of ``x``, each row in one piece; the rows of groups are
            written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, weight, bias, ends, out)
    (rows, inputs), (groups, width, _) = x.shape, weight.shape
    if not rows or not width:
        return
    tile = FEW if rows < FEW.rows * groups else MANY
    grid = (rows // tile.rows + min(groups, rows), triton.cdiv(width, tile.outputs))
    grouped_packed_kernel[grid](
        x, x.stride(0), weight.values, weight.scales, weight.zeros, weight.minimums, bias, ends,
        out, out.stride(0), groups, INPUTS=inputs, WIDTH=width, BITS=weight.bits,
        GROUP=weight.group, FLOATS=weight.floats, HAS_ZEROS=weight.zeros is not None,
        HAS_MINIMUMS=weight.minimums is not None, HAS_BIAS=bias is not None,
        GROUPS_BLOCK=triton.next_power_of_2(groups), BLOCK=BLOCKS[weight.bits],
        enable_fp_fusion=False, **tile.options(),
    )  # fmt: skip


def grouped_packed_reference(
    x: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """As :func:`grouped_packed`, in torch, group by group: it waits for ``ends``."""
    _check(x, weight, bias, ends, out)
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            numbers = weight.layer(group).dequantized(x.dtype).float()
            product = x[start:end].float() @ numbers.t()
            out[start:end] = product if bias is None else product + bias[group].float()
        start = end


def _check(
    x: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    weight.check()
    if x.ndim != 2 or len(weight.shape) != 3 or weight.shape[2] != x.shape[1]:
        raise ValueError(f"x {[*x.shape]} and weight {[*weight.shape]} do not fit")
    groups, width, _ = weight.shape
    if out.shape != (len(x), width) or ends.shape != (groups,) or ends.dtype != torch.int32:
        raise ValueError(f"out {[*out.shape]}, ends {ends.dtype} {[*ends.shape]}")
    if bias is not None and (bias.shape != (groups, width) or not bias.is_contiguous()):
        raise ValueError(f"bias {[*bias.shape]} is not [groups, outputs], in one piece")
    if out.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"bias and out must be {x.dtype}, as x is")
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("each row of x and out must be in one piece")

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

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.grouped import check_groups, tile_of_group
from pyengine.kernels.layers.packed_product import packed_sums
from pyengine.kernels.layers.packed_tensor import BLOCKS, PackedTensor
from pyengine.kernels.layers.tiles import store_tile, tile_of_groups


@triton.jit(do_not_specialize=["groups"])
def grouped_packed_kernel(
    x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, ends_ptr, out_ptr,
    out_stride, groups, INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr,
    GROUP: tl.constexpr, FLOATS: tl.constexpr, HAS_ZEROS: tl.constexpr,
    HAS_MINIMUMS: tl.constexpr, HAS_BIAS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs; ``INPUTS`` by ``WIDTH`` are a group's."""
    SCALES: tl.constexpr = (INPUTS + GROUP - 1) // GROUP * WIDTH
    wait_for_inputs(CHAINED)
    mine, first, stop = tile_of_group(ends_ptr, tl.program_id(0), groups, GROUPS_BLOCK, ROWS)
    if mine < groups:
        row = (first + tl.arange(0, ROWS))[None, :]  # [1, ROWS]
        output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
        number = mine.to(tl.int64)
        weight_ptr += number * WIDTH * (INPUTS // (8 // BITS))
        scale_ptr += number * SCALES
        if HAS_ZEROS:
            zero_ptr += number * SCALES
        if HAS_MINIMUMS:
            minimum_ptr += number * SCALES
        if HAS_BIAS:
            bias_ptr += number * WIDTH
        sums = packed_sums(
            x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, row, stop, output,
            INPUTS, WIDTH, BITS, GROUP, FLOATS, HAS_ZEROS, HAS_MINIMUMS, ROWS, OUTS, BLOCK,
        )  # fmt: skip
        store_tile(sums, bias_ptr, out_ptr, out_stride, row, stop, output, WIDTH, HAS_BIAS)


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
    tile = tile_of_groups(rows, groups)
    grid = (rows // tile.rows + min(groups, rows), triton.cdiv(width, tile.outputs))
    grouped_packed_kernel[grid](
        x, x.stride(0), weight.values, weight.scales, weight.zeros, weight.minimums, bias, ends,
        out, out.stride(0), groups, INPUTS=inputs, WIDTH=width, BITS=weight.bits,
        GROUP=weight.group, FLOATS=weight.floats, HAS_ZEROS=weight.zeros is not None,
        HAS_MINIMUMS=weight.minimums is not None, HAS_BIAS=bias is not None,
        GROUPS_BLOCK=triton.next_power_of_2(groups), BLOCK=BLOCKS[weight.bits],
        enable_fp_fusion=False, **tile.options(), **chained(x.device),
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
    check_groups(x, weight.shape, bias, ends, out)
    if out.dtype != x.dtype:
        raise ValueError(f"out must be {x.dtype}, as x is")

"""Products of rows with the weights of the group that they belong to, such as experts.

Rows lie group by group. A group's rows are cut into tiles, and tiles are numbered through all
groups; as only the device knows how many rows a group has, as many programs start as there may be
tiles, and each finds its own by a sum over the groups::

    ends      3  3  5        rows 0..3 of group 0, none of group 1, rows 3..5 of group 2
    tiles     1  0  1        of at least 3 rows
    programs  0  1  ·        the rest ends at once

Bytes moved: the weights of the groups that have rows once for each tile of rows, rows once for
each tile of outputs. Bytes of weights are the limit for few rows, products for many.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.tiles import store_tile, tile_of_groups


@triton.jit
def tile_of_group(ends_ptr, tile, groups, GROUPS_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Of a tile of ``ROWS`` rows its group, first row, and where the group's rows end; behind the
    last tile the group is ``groups``.
    """
    group = tl.arange(0, GROUPS_BLOCK)
    end = tl.load(ends_ptr + group, mask=group < groups, other=0)
    start = tl.load(ends_ptr + group - 1, mask=(group > 0) & (group < groups), other=0)
    tiles = (end - start + ROWS - 1) // ROWS
    behind = tl.cumsum(tiles, axis=0)
    mine = tl.sum((behind <= tile).to(tl.int32), axis=0)
    is_mine = group == mine
    first = tl.sum(tl.where(is_mine, start + (tile - behind + tiles) * ROWS, 0), axis=0)
    stop = tl.sum(tl.where(is_mine, end, 0), axis=0)
    return mine, first, stop


@triton.jit
def dense_sums(
    x_ptr, x_stride, weight_ptr, row, stop, output, INPUTS: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of the products of rows before ``stop`` with the weights of a layer, float32
    [OUTS, ROWS]; ``row`` is [1, ROWS], ``output`` [OUTS, 1].
    """
    x_ptr += row.to(tl.int64) * x_stride
    weight_ptr += output.to(tl.int64) * INPUTS
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    for at in range(0, INPUTS, BLOCK):
        i = at + tl.arange(0, BLOCK)
        inside = (output < WIDTH) & (i < INPUTS)[None, :]
        weight = tl.load(weight_ptr + i[None, :], mask=inside, other=0.0)  # [OUTS, BLOCK]
        inside = (row < stop) & (i < INPUTS)[:, None]
        x = tl.load(x_ptr + i[:, None], mask=inside, other=0.0)  # [BLOCK, ROWS]
        sums = tl.dot(weight, x, sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["groups"])
def grouped_kernel(
    x_ptr, x_stride, weight_ptr, bias_ptr, ends_ptr, out_ptr, out_stride, groups,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, HAS_BIAS: tl.constexpr, GROUPS_BLOCK: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs; ``INPUTS`` by ``WIDTH`` are a group's."""
    wait_for_inputs(CHAINED)
    mine, first, stop = tile_of_group(ends_ptr, tl.program_id(0), groups, GROUPS_BLOCK, ROWS)
    if mine < groups:
        row = (first + tl.arange(0, ROWS))[None, :]  # [1, ROWS]
        output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
        number = mine.to(tl.int64)
        weight_ptr += number * WIDTH * INPUTS
        if HAS_BIAS:
            bias_ptr += number * WIDTH
        sums = dense_sums(
            x_ptr, x_stride, weight_ptr, row, stop, output, INPUTS, WIDTH, ROWS, OUTS, BLOCK
        )
        store_tile(sums, bias_ptr, out_ptr, out_stride, row, stop, output, WIDTH, HAS_BIAS)


def grouped(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """``out[row] = x[row] weight[group]^T + bias[group]`` for each row of a group.

    Queues one kernel on the current stream; can be captured. Sums are float32, rounded once.

    Args:
        x: [rows, inputs], group by group, float32, bfloat16 or float16, each row in one piece.
        weight: [groups, outputs, inputs], in one piece.
        bias: [groups, outputs], in one piece, or None.
        ends: int32 [groups], where the rows of each group end, not falling; rows behind the last
            belong to none.
        out: [rows, outputs], each row in one piece; the rows of groups are written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, weight, bias, ends, out)
    (rows, inputs), (groups, width) = x.shape, weight.shape[:2]
    if not rows or not width:
        return
    tile = tile_of_groups(rows, groups)
    grid = (rows // tile.rows + min(groups, rows), triton.cdiv(width, tile.outputs))
    grouped_kernel[grid](
        x, x.stride(0), weight, bias, ends, out, out.stride(0), groups,
        INPUTS=inputs, WIDTH=width, HAS_BIAS=bias is not None,
        GROUPS_BLOCK=triton.next_power_of_2(groups),
        BLOCK=32 if x.dtype == torch.float32 else 64, enable_fp_fusion=True, **tile.options(),
        **chained(x.device),
    )  # fmt: skip


def grouped_reference(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """As :func:`grouped`, in torch, group by group: it waits for ``ends``."""
    _check(x, weight, bias, ends, out)
    start = 0
    for group, end in enumerate(ends.tolist()):
        rows = slice(start, end)
        of_group = None if bias is None else bias[group]
        out[rows] = torch.nn.functional.linear(x[rows], weight[group], of_group)
        start = end


def check_groups(
    x: torch.Tensor,
    weight: tuple[int, ...],
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """Raise what all products by group say of rows, biases and borders that do not fit.

    Args:
        x: [rows, inputs].
        weight: The shape of the weights.
        bias: [groups, outputs], or None.
        ends: [groups].
        out: [rows, outputs].

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    if x.ndim != 2 or len(weight) != 3 or weight[2] != x.shape[1]:
        raise ValueError(f"x {[*x.shape]} and weight {[*weight]} do not fit")
    groups, width, _ = weight
    if out.shape != (len(x), width) or ends.shape != (groups,) or ends.dtype != torch.int32:
        raise ValueError(f"out {[*out.shape]}, ends {ends.dtype} {[*ends.shape]}")
    if bias is not None and (bias.shape != (groups, width) or not bias.is_contiguous()):
        raise ValueError(f"bias {[*bias.shape]} is not [groups, outputs], in one piece")
    if bias is not None and bias.dtype != out.dtype:
        raise ValueError(f"bias must be {out.dtype}, as out is")
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("each row of x and out must be in one piece")


def _check(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    check_groups(x, weight.shape, bias, ends, out)
    if weight.dtype != x.dtype or out.dtype != x.dtype:
        raise ValueError(f"weight and out must be {x.dtype}, as x is")
    if not weight.is_contiguous():
        raise ValueError("weight must be in one piece")

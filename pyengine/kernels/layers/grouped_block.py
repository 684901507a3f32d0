"""Rows of 8-bit floats by those of the group that they belong to, such as experts, both with scales
for steps of inputs.

Rows lie group by group, and programs find their tile as those of
:mod:`pyengine.kernels.layers.grouped` do; what a tile's numbers are, and what limits them, says
:mod:`pyengine.kernels.layers.block_product`.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.block_product import block_sums
from pyengine.kernels.layers.grouped import check_groups, tile_of_group
from pyengine.kernels.layers.packed_tensor import PackedTensor
from pyengine.kernels.layers.quantize import FLOAT8
from pyengine.kernels.layers.tiles import store_tile, tile_of_groups


@triton.jit(do_not_specialize=["groups"])
def grouped_block_kernel(
    x_ptr, x_stride, x_scale_ptr, x_scale_stride, weight_ptr, scale_ptr, bias_ptr, ends_ptr,
    out_ptr, out_stride, groups, INPUTS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr, GROUPS_BLOCK: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs; ``INPUTS`` by ``WIDTH`` are a group's."""
    wait_for_inputs(CHAINED)
    mine, first, stop = tile_of_group(ends_ptr, tl.program_id(0), groups, GROUPS_BLOCK, ROWS)
    if mine < groups:
        row = (first + tl.arange(0, ROWS))[None, :]  # [1, ROWS]
        output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
        number = mine.to(tl.int64)
        weight_ptr += number * WIDTH * INPUTS
        scale_ptr += number * ((INPUTS + STEP - 1) // STEP) * WIDTH
        if HAS_BIAS:
            bias_ptr += number * WIDTH
        sums = block_sums(
            x_ptr, x_stride, x_scale_ptr, x_scale_stride, weight_ptr, scale_ptr, row, stop,
            output, INPUTS, WIDTH, STEP, ROWS, OUTS,
        )  # fmt: skip
        store_tile(sums, bias_ptr, out_ptr, out_stride, row, stop, output, WIDTH, HAS_BIAS)


def grouped_block(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """``out[row] = x[row] weight[group]^T + bias[group]`` of the numbers that are meant.

    Queues one kernel on the current stream; can be captured. Summed in float32, rounded once.

    Args:
        x: float8_e4m3fn [rows, inputs], group by group, each row in one piece.
        x_scales: float32 [steps, rows], those of a step in one piece.
        weight: Floats of 8 bits [groups, outputs, inputs] with scales of float32 for steps of
            inputs, a power of two from 32 on.
        bias: [groups, outputs] of the type of ``out``, in one piece, or None.
        ends: int32 [groups], where the rows of each group end, not falling; rows behind the last
            belong to none.
        out: float32, bfloat16 or float16 [rows, outputs], each row in one piece; the rows of
            groups are written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, x_scales, weight, bias, ends, out)
    (rows, inputs), (groups, width, _) = x.shape, weight.shape
    if not rows or not width:
        return
    tile = tile_of_groups(rows, groups)
    grid = (rows // tile.rows + min(groups, rows), triton.cdiv(width, tile.outputs))
    grouped_block_kernel[grid](
        x, x.stride(0), x_scales, x_scales.stride(0), weight.values, weight.scales, bias, ends,
        out, out.stride(0), groups, INPUTS=inputs, WIDTH=width, STEP=weight.group,
        HAS_BIAS=bias is not None, GROUPS_BLOCK=triton.next_power_of_2(groups),
        enable_fp_fusion=True, **tile.options(), **chained(x.device),
    )  # fmt: skip


def grouped_block_reference(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    """As :func:`grouped_block`, in torch, group by group: it waits for ``ends``."""
    _check(x, x_scales, weight, bias, ends, out)
    of_steps = x_scales.t().repeat_interleave(weight.group, dim=1)[:, : x.shape[1]]
    meant, start = x.float() * of_steps, 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            product = meant[start:end] @ weight.layer(group).dequantized(torch.float32).t()
            out[start:end] = product if bias is None else product + bias[group].float()
        start = end


def _check(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: PackedTensor,
    bias: torch.Tensor | None,
    ends: torch.Tensor,
    out: torch.Tensor,
) -> None:
    weight.check()
    check_groups(x, weight.shape, bias, ends, out)
    step = weight.group
    if x.dtype != FLOAT8 or weight.values.dtype != FLOAT8:
        raise ValueError(f"x and weight must be {FLOAT8}")
    if step < 32 or step & (step - 1):
        raise ValueError(f"a step of {step} inputs is no power of two from 32 on")
    if x_scales.shape != (weight.scales.shape[1], len(x)):
        raise ValueError(f"scales {[*x_scales.shape]} by {step} inputs of {[*x.shape]}")
    if x_scales.dtype != torch.float32 or weight.scales.dtype != torch.float32:
        raise ValueError("scales must be float32")
    if len(x) > 1 and x_scales.stride(1) != 1:
        raise ValueError("each step of x_scales must be in one piece")

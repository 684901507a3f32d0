"""Rows by integers of 4 or 8 bits with scales for groups of inputs: weights alone are quantized.

A tile of weights becomes the numbers that it means in registers, computed in float32 and rounded to
the rows' type once, which are the numbers that a dense layer of the same file would hold; tensor
cores multiply these. Integers lie as :class:`pyengine.model.weights.matrix.Packed` has them, so
that a rank's share is a cut of the file's.

Bytes moved: the weights and their scales once for each tile of rows, rows once for each tile of
outputs. For few rows bytes of weights are the limit, in 4 bits instructions: the code for sm_90 has
six to eight for each weight. For many rows products are.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.packed_tensor import BLOCKS, PackedTensor, weights_of
from pyengine.kernels.layers.tiles import store_tile, tile_for


@triton.jit
def packed_sums(
    x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, row, stop, output,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    FLOATS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMUMS: tl.constexpr, ROWS: tl.constexpr,
    OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """A tile of the products of rows before ``stop`` with the weights of a layer, float32
    [OUTS, ROWS]; ``row`` is [1, ROWS], ``output`` [OUTS, 1].
    """
    x_ptr += row.to(tl.int64) * x_stride
    weight_ptr += output.to(tl.int64) * (INPUTS // (8 // BITS))
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    for at in range(0, INPUTS, BLOCK):
        weight = weights_of(
            weight_ptr, scale_ptr, zero_ptr, minimum_ptr, at, output, INPUTS, WIDTH, BITS, GROUP,
            FLOATS, HAS_ZEROS, HAS_MINIMUMS, OUTS, BLOCK,
        )  # fmt: skip
        i = at + tl.arange(0, BLOCK)[:, None]
        x = tl.load(x_ptr + i, mask=(row < stop) & (i < INPUTS), other=0.0)  # [BLOCK, ROWS]
        sums = tl.dot(weight.to(x.dtype), x, sums, input_precision="ieee")
    return sums


@triton.jit(do_not_specialize=["rows"])
def packed_product_kernel(
    x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, out_ptr, out_stride,
    rows, INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    FLOATS: tl.constexpr, HAS_ZEROS: tl.constexpr, HAS_MINIMUMS: tl.constexpr,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr,
    CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
    wait_for_inputs(CHAINED)
    sums = packed_sums(
        x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, row, rows, output, INPUTS,
        WIDTH, BITS, GROUP, FLOATS, HAS_ZEROS, HAS_MINIMUMS, ROWS, OUTS, BLOCK,
    )  # fmt: skip
    store_tile(sums, bias_ptr, out_ptr, out_stride, row, rows, output, WIDTH, HAS_BIAS)


def packed_product(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """``out = x weight^T + bias``.

    Queues one kernel on the current stream; can be captured. Weights are rounded to the type of
    ``x``, sums are float32, rounded once.

    Args:
        x: float32, bfloat16 or float16 [rows, inputs], each row in one piece.
        weight: [outputs, inputs].
        bias: [outputs] of the type of ``x``, or None.
        out: [rows, outputs] of the type of ``x``, each row in one piece; written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, weight, bias, out)
    (rows, inputs), (width, _) = x.shape, weight.shape
    if rows and width:
        tile = tile_for(rows)
        grid = triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.outputs)
        packed_product_kernel[grid](
            x, x.stride(0), weight.values, weight.scales, weight.zeros, weight.minimums, bias, out,
            out.stride(0), rows, INPUTS=inputs, WIDTH=width, BITS=weight.bits, GROUP=weight.group,
            FLOATS=weight.floats, HAS_ZEROS=weight.zeros is not None,
            HAS_MINIMUMS=weight.minimums is not None, HAS_BIAS=bias is not None,
            BLOCK=BLOCKS[weight.bits], enable_fp_fusion=False, **tile.options(),
            **chained(x.device),
        )  # fmt: skip


def packed_product_reference(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """As :func:`packed_product`, in torch: the product of the numbers that are meant."""
    _check(x, weight, bias, out)
    product = x.float() @ weight.dequantized(x.dtype).float().t()
    out.copy_(product if bias is None else product + bias.float())


def _check(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    weight.check()
    width, inputs = weight.shape
    if x.ndim != 2 or x.shape[1] != inputs or out.shape != (len(x), width):
        raise ValueError(f"x {[*x.shape]}, weight {[*weight.shape]}, out {[*out.shape]}")
    if out.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"bias and out must be {x.dtype}, as x is")
    if bias is not None and bias.shape != (width,):
        raise ValueError(f"bias {[*bias.shape]} is not [{width}]")
    if x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("each row of x and out must be in one piece")

"""Rows of 8-bit floats by weights of 8-bit floats, both with scales for steps of inputs.

::

    out[row, output] = sum over steps of  x_scales[step, row] * scales[step, output]
                                        * sum over the step's inputs of  x * weight

A step is 128 inputs, as DeepSeek's models have it ("DeepSeek-V3 Technical Report", 2024, 3.3), or
fewer. The sum of a step is the tensor cores', of which Hopper's keep some 14 bits of a sum of 8-bit
floats; steps are added up in float32.

Bytes moved: the weights and their scales once for each tile of rows, rows and theirs once for each
tile of outputs. Bytes of weights are the limit for few rows, products for many.
"""

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.quantize import FLOAT8
from pyengine.kernels.layers.tiles import store_tile, tile_for


@triton.jit
def block_sums(
    x_ptr, x_stride, x_scale_ptr, x_scale_stride, weight_ptr, scale_ptr, row, stop, output,
    INPUTS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr, ROWS: tl.constexpr,
    OUTS: tl.constexpr,
):  # fmt: skip
    """A tile of the products of rows before ``stop`` with the weights of a layer, float32
    [OUTS, ROWS]; ``row`` is [1, ROWS], ``output`` [OUTS, 1].
    """
    x_ptr += row.to(tl.int64) * x_stride
    weight_ptr += output.to(tl.int64) * INPUTS
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    for step in range((INPUTS + STEP - 1) // STEP):
        i = step * STEP + tl.arange(0, STEP)
        inside = (output < WIDTH) & (i < INPUTS)[None, :]
        weight = tl.load(weight_ptr + i[None, :], mask=inside, other=0.0)  # [OUTS, STEP]
        inside = (row < stop) & (i < INPUTS)[:, None]
        x = tl.load(x_ptr + i[:, None], mask=inside, other=0.0)  # [STEP, ROWS]
        scale = tl.load(scale_ptr + step * WIDTH + output, mask=output < WIDTH, other=0.0)
        x_scale = tl.load(x_scale_ptr + step * x_scale_stride + row, mask=row < stop, other=0.0)
        sums += tl.dot(weight, x) * scale * x_scale
    return sums


@triton.jit(do_not_specialize=["rows"])
def block_product_kernel(
    x_ptr, x_stride, x_scale_ptr, x_scale_stride, weight_ptr, scale_ptr, bias_ptr, out_ptr,
    out_stride, rows, INPUTS: tl.constexpr, WIDTH: tl.constexpr, STEP: tl.constexpr,
    HAS_BIAS: tl.constexpr, ROWS: tl.constexpr, OUTS: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs."""
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
    wait_for_inputs(CHAINED)
    sums = block_sums(
        x_ptr, x_stride, x_scale_ptr, x_scale_stride, weight_ptr, scale_ptr, row, rows, output,
        INPUTS, WIDTH, STEP, ROWS, OUTS,
    )  # fmt: skip
    store_tile(sums, bias_ptr, out_ptr, out_stride, row, rows, output, WIDTH, HAS_BIAS)


def block_product(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    step: int,
    out: torch.Tensor,
) -> None:
    """``out = x weight^T + bias`` of the numbers that are meant.

    Queues one kernel on the current stream; can be captured. Summed in float32, rounded once.

    Args:
        x: float8_e4m3fn [rows, inputs], each row in one piece.
        x_scales: float32 [steps, rows], those of a step in one piece.
        weight: float8_e4m3fn [outputs, inputs], in one piece.
        scales: float32 [steps, outputs], in one piece.
        bias: [outputs] of the type of ``out``, or None.
        step: Inputs of a step, a power of two from 32 on; the last may be fewer.
        out: float32, bfloat16 or float16 [rows, outputs], each row in one piece; written.

    Raises:
        ValueError: Shapes, types or strides are others.
    """
    _check(x, x_scales, weight, scales, bias, step, out)
    (rows, inputs), width = x.shape, len(weight)
    if rows and width:
        tile = tile_for(rows)
        grid = triton.cdiv(rows, tile.rows), triton.cdiv(width, tile.outputs)
        block_product_kernel[grid](
            x, x.stride(0), x_scales, x_scales.stride(0), weight, scales, bias, out, out.stride(0),
            rows, INPUTS=inputs, WIDTH=width, STEP=step, HAS_BIAS=bias is not None,
            enable_fp_fusion=True, **tile.options(), **chained(x.device),
        )  # fmt: skip


def block_product_reference(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    step: int,
    out: torch.Tensor,
) -> None:
    """As :func:`block_product`, in torch: the product of the numbers that are meant."""
    _check(x, x_scales, weight, scales, bias, step, out)
    meant, by = (
        each.float() * by_step.t().repeat_interleave(step, dim=1)[:, : each.shape[1]]
        for each, by_step in ((x, x_scales), (weight, scales))
    )
    product = meant @ by.t()
    out.copy_(product if bias is None else product + bias.float())


def _check(
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    scales: torch.Tensor,
    bias: torch.Tensor | None,
    step: int,
    out: torch.Tensor,
) -> None:
    (rows, inputs), width = x.shape, len(weight)
    steps = -(-inputs // step)
    if weight.shape[1] != inputs or out.shape != (rows, width):
        raise ValueError(f"x {[*x.shape]}, weight {[*weight.shape]}, out {[*out.shape]}")
    if x_scales.shape != (steps, rows) or scales.shape != (steps, width):
        raise ValueError(f"scales {[*x_scales.shape]} and {[*scales.shape]} by {step} inputs")
    if step < 32 or step & (step - 1):
        raise ValueError(f"a step of {step} inputs is no power of two from 32 on")
    if x.dtype != FLOAT8 or weight.dtype != FLOAT8:
        raise ValueError(f"x and weight must be {FLOAT8}")
    if x_scales.dtype != torch.float32 or scales.dtype != torch.float32:
        raise ValueError("scales must be float32")
    if bias is not None and (bias.shape != (width,) or bias.dtype != out.dtype):
        raise ValueError(f"bias {bias.dtype} {[*bias.shape]} is not {out.dtype} [{width}]")
    if not weight.is_contiguous() or not scales.is_contiguous() or x.stride(1) != 1:
        raise ValueError("weight, scales and each row of x must be in one piece")
    if (rows > 1 and x_scales.stride(1) != 1) or (width > 1 and out.stride(1) != 1):
        raise ValueError("each step of x_scales and each row of out must be in one piece")

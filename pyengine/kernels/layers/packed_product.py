"""Rows by integers of 4 or 8 bits with scales for groups of inputs: weights alone are quantized.

A tile of weights becomes the numbers that it means in registers, computed in float32 and rounded to
the rows' type once, which are the numbers that a dense layer of the same file would hold; tensor
cores multiply these. Integers lie as :class:`pyengine.model.weights.matrix.Packed` has them, so
that a rank's share is a cut of the file's.

Bytes moved: the weights and their scales once for each tile of rows, rows once for each tile of
outputs. For few rows bytes of weights are the limit, in 4 bits instructions: the code for sm_90 has
six to eight for each weight. For many rows products are.
"""

from dataclasses import dataclass

import torch

from pyengine.kernels.chain import chained, wait_for_inputs
from pyengine.kernels.language import tl, triton
from pyengine.kernels.layers.tiles import tile_for

BLOCKS = {4: 128, 8: 64}
"""Inputs that a program multiplies at a time, by bits: as many bytes of weights, and what the tiles
of many rows have room for where a program has 99 KiB of shared memory.
"""


@dataclass(frozen=True)
class PackedTensor:
    """Quantized weights on a device: :class:`pyengine.model.weights.matrix.Packed` says what its
    numbers mean.

    Attributes:
        values: [outputs, inputs], int8 where 8 bits are symmetric, else uint8; of 4 bits uint8
            [outputs, inputs / 2].
        scales: float32, bfloat16 or float16 [groups, outputs].
        zeros: uint8 [groups, outputs], or None.
        minimums: float32 [groups, outputs], or None.
        bits: 4 or 8.
        group: Inputs of a group: 16, 32, 64, a multiple of 128, or all of them.
    """

    values: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor | None
    minimums: torch.Tensor | None
    bits: int
    group: int

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, width = self.values.shape
        return outputs, width * 8 // self.bits

    def dequantized(self, dtype: torch.dtype) -> torch.Tensor:
        """The numbers that are meant, [outputs, inputs], rounded to ``dtype``."""
        numbers = self.values
        if self.bits == 4:
            numbers = torch.stack((numbers & 15, numbers >> 4), dim=2).flatten(1)
        scales, zeros, minimums = (
            None if each is None else each.float().t().repeat_interleave(self.group, dim=1)
            for each in (self.scales, self.zeros, self.minimums)
        )
        weights = numbers.float()
        if zeros is not None:
            weights -= zeros
        elif self.bits == 4 and minimums is None:
            weights -= 8
        assert scales is not None
        weights *= scales
        if minimums is not None:
            weights -= minimums
        return weights.to(dtype)


@triton.jit
def of_groups(
    ptr, at, output, INPUTS: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    OUTS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """What the inputs of a block have of their groups, float32: [OUTS, BLOCK], or [OUTS, 1] where
    the block is of one group.
    """
    if GROUP < BLOCK and GROUP < INPUTS:
        group = at // GROUP + tl.arange(0, BLOCK // GROUP)[None, :]
        inside = (output < WIDTH) & (group < INPUTS // GROUP)
        by_group = tl.load(ptr + group * WIDTH + output, mask=inside, other=0)
        spread = tl.broadcast_to(by_group[:, :, None], [OUTS, BLOCK // GROUP, GROUP])
        numbers = tl.reshape(spread, [OUTS, BLOCK])
    else:
        numbers = tl.load(ptr + at // GROUP * WIDTH + output, mask=output < WIDTH, other=0)
    return numbers.to(tl.float32)


@triton.jit(do_not_specialize=["rows"])
def packed_product_kernel(
    x_ptr, x_stride, weight_ptr, scale_ptr, zero_ptr, minimum_ptr, bias_ptr, out_ptr, out_stride,
    rows, INPUTS: tl.constexpr, WIDTH: tl.constexpr, BITS: tl.constexpr, GROUP: tl.constexpr,
    HAS_ZEROS: tl.constexpr, HAS_MINIMUMS: tl.constexpr, HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr, OUTS: tl.constexpr, BLOCK: tl.constexpr, CHAINED: tl.constexpr = False,
):  # fmt: skip
    """A grid of tiles of rows and tiles of outputs."""
    A_BYTE: tl.constexpr = 8 // BITS
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)[None, :]  # [1, ROWS]
    output = tl.program_id(1) * OUTS + tl.arange(0, OUTS)[:, None]  # [OUTS, 1]
    x_ptr += row.to(tl.int64) * x_stride
    weight_ptr += output.to(tl.int64) * (INPUTS // A_BYTE)
    sums = tl.zeros([OUTS, ROWS], tl.float32)
    wait_for_inputs(CHAINED)
    for at in range(0, INPUTS, BLOCK):
        place = at // A_BYTE + tl.arange(0, BLOCK // A_BYTE)[None, :]
        inside = (output < WIDTH) & (place < INPUTS // A_BYTE)
        packed = tl.load(weight_ptr + place, mask=inside, other=0)
        if BITS == 4:
            packed = tl.interleave(packed & 15, packed >> 4)
        weight = packed.to(tl.float32)  # [OUTS, BLOCK]
        if HAS_ZEROS:
            weight -= of_groups(zero_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK)
        elif BITS == 4 and not HAS_MINIMUMS:
            weight -= 8.0
        weight *= of_groups(scale_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK)
        if HAS_MINIMUMS:
            weight -= of_groups(minimum_ptr, at, output, INPUTS, WIDTH, GROUP, OUTS, BLOCK)
        i = at + tl.arange(0, BLOCK)[:, None]
        x = tl.load(x_ptr + i, mask=(row < rows) & (i < INPUTS), other=0.0)  # [BLOCK, ROWS]
        sums = tl.dot(weight.to(x.dtype), x, sums, input_precision="ieee")
    if HAS_BIAS:
        sums += tl.load(bias_ptr + output, mask=output < WIDTH, other=0.0).to(tl.float32)
    out_ptr += row.to(tl.int64) * out_stride + output
    inside = (row < rows) & (output < WIDTH)
    tl.store(out_ptr, sums.to(out_ptr.dtype.element_ty), mask=inside)


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
            HAS_ZEROS=weight.zeros is not None, HAS_MINIMUMS=weight.minimums is not None,
            HAS_BIAS=bias is not None, BLOCK=BLOCKS[weight.bits], enable_fp_fusion=False,
            **tile.options(), **chained(x.device),
        )  # fmt: skip


def packed_product_reference(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    """As :func:`packed_product`, in torch: the product of the numbers that are meant."""
    _check(x, weight, bias, out)
    product = x.float() @ weight.dequantized(x.dtype).float().t()
    out.copy_(product if bias is None else product + bias.float())


def takes_groups(group: int, inputs: int) -> bool:
    """Whether there is a product for groups of so many inputs."""
    return group in (16, 32, 64, inputs) or group % max(BLOCKS.values()) == 0


def _check(
    x: torch.Tensor, weight: PackedTensor, bias: torch.Tensor | None, out: torch.Tensor
) -> None:
    width, inputs = weight.shape
    groups = (inputs // weight.group, width)
    if x.ndim != 2 or x.shape[1] != inputs or out.shape != (len(x), width):
        raise ValueError(f"x {[*x.shape]}, weight {[*weight.shape]}, out {[*out.shape]}")
    if inputs % weight.group or not takes_groups(weight.group, inputs):
        raise ValueError(f"groups of {weight.group} of {inputs} inputs have no product")
    for numbers in (weight.scales, weight.zeros, weight.minimums):
        if numbers is not None and (numbers.shape != groups or not numbers.is_contiguous()):
            raise ValueError(f"{[*numbers.shape]} is not {[*groups]}, in one piece")
    symmetric = weight.bits == 8 and weight.zeros is None and weight.minimums is None
    if weight.values.dtype != (torch.int8 if symmetric else torch.uint8):
        raise ValueError(f"values of {weight.bits} bits must not be {weight.values.dtype}")
    if out.dtype != x.dtype or (bias is not None and bias.dtype != x.dtype):
        raise ValueError(f"bias and out must be {x.dtype}, as x is")
    if bias is not None and bias.shape != (width,):
        raise ValueError(f"bias {[*bias.shape]} is not [{width}]")
    if not weight.values.is_contiguous() or x.stride(1) != 1 or out.stride(1) != 1:
        raise ValueError("weight, and each row of x and out, must be in one piece")

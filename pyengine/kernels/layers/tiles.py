"""Tiles of products with weights, dense or quantized: the same for all of them.

A product is computed as ``weight x^T``: weights, which are read once, are the operand that tensor
cores take out of registers, where quantized ones become what is multiplied. Few rows are limited by
the bytes of the weights, so that tiles have few outputs, for many programs; many rows by
operations. None of the sizes was measured.
"""

from dataclasses import dataclass
from typing import Any

from pyengine.kernels.language import tl, triton


@dataclass(frozen=True)
class Tile:
    """The part of a product that a program computes.

    Attributes:
        rows: Rows of activations.
        outputs: Outputs of weights.
        warps: The warps of the program.
        stages: The stages of its loads, under way beside one another.
    """

    rows: int
    outputs: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        """The options of a launch, as Triton takes them."""
        return {
            "ROWS": self.rows,
            "OUTS": self.outputs,
            "num_warps": self.warps,
            "num_stages": self.stages,
        }


_TILES = {1: Tile(16, 32, 2, 6), 17: Tile(64, 64, 4, 4), 65: Tile(128, 128, 8, 3)}

BORDERS = tuple(_TILES)
"""The fewest rows that get each of the tiles."""


def tile_for(rows: int) -> Tile:
    """The tile of a product of ``rows`` rows."""
    return _TILES[max(least for least in BORDERS if least <= rows)]


def tile_of_groups(rows: int, groups: int) -> Tile:
    """The tile of products of ``rows`` rows with the weights of their groups: the smallest where
    the groups have few rows, or else the largest.
    """
    few = _TILES[BORDERS[0]]
    return few if rows < few.rows * groups else _TILES[BORDERS[-1]]


@triton.jit
def store_tile(
    sums, bias_ptr, out_ptr, out_stride, row, stop, output, WIDTH: tl.constexpr,
    HAS_BIAS: tl.constexpr,
):  # fmt: skip
    """Write ``sums`` [outputs, rows] and the biases, rounded once, where rows are before ``stop``;
    ``row`` is [1, rows], ``output`` [outputs, 1].
    """
    if HAS_BIAS:
        sums += tl.load(bias_ptr + output, mask=output < WIDTH, other=0.0).to(tl.float32)
    places = out_ptr + row.to(tl.int64) * out_stride + output
    inside = (row < stop) & (output < WIDTH)
    tl.store(places, sums.to(out_ptr.dtype.element_ty), mask=inside)

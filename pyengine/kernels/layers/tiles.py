"""Tiles of products with quantized weights: the same for all of them.

A product is computed as ``weight x^T``: weights, which are read once, are the operand that tensor
cores take out of registers, where they become what is multiplied. Few rows are limited by the bytes
of the weights, so that tiles have few outputs, for many programs; many rows by operations. None of
the sizes was measured.
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Tile:
    """What a program computes.

    Attributes:
        rows: Of activations.
        outputs: Of weights.
        warps: Of the program.
        stages: Of its loads, under way beside one another.
    """

    rows: int
    outputs: int
    warps: int
    stages: int

    def options(self) -> dict[str, Any]:
        """As Triton takes them at a launch."""
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
    """The tile of a product of so many rows."""
    return _TILES[max(least for least in BORDERS if least <= rows)]

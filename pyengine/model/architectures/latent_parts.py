"""The parts of layers that keep latents: attention in its absorbed form, and layers of each head.

A token's latent is key and value of all heads in one (DeepSeek-AI, "DeepSeek-V2", 2024). What would
make keys and values of latents is absorbed by what is before and behind attention, so that keys and
values are never there::

    queries ─┬─ of each head, to the latent's width ─ absorbed ─┐
             └─ rotated ────────────────────────────────────────┴─ scores with latents and keys
                                                                              │
    values ◄─ of each head, from the latent's width ◄─ weighted latents ◄─────┘

All tokens are computed so, those of prompts too: a token's numbers do not depend on where its
prompt was cut, nor on whether it was cached.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from pyengine.model.architectures.buffer import Buffer


@dataclass(frozen=True, eq=False, kw_only=True)
class LatentHeads:
    """How the heads of one layer attend to latents.

    Attributes:
        heads: Query heads of this rank.
        rank: Numbers of a latent.
        rotated: Rotated elements of a query, and of the key that all heads share.
        norm: The weight of the latents' norm, [rank].
        epsilon: Added to the mean of the squares.
        angles: float32 [context, rotated], cosines, then sines; layers may share an array.
        scale: Multiplies the scores.
        temperatures: float32 [context], what multiplies the scores of the query at each position;
            None: nothing.
    """

    heads: int
    rank: int
    rotated: int
    norm: NDArray[Any]
    epsilon: float
    angles: NDArray[np.float32]
    scale: float
    temperatures: NDArray[np.float32] | None = None


class LatentAttention(Protocol):
    """Causal attention of one layer over its latents."""

    def __call__(
        self,
        step: Any,
        absorbed: Buffer,
        queries: Buffer,
        column: int,
        latents: Buffer,
        out: Buffer,
        tokens: int,
    ) -> None:
        """Normalize and store latents, rotate and store keys, rotate queries, attend.

        Args:
            step: Says whose tokens they are.
            absorbed: [tokens, heads * rank].
            queries: Has the queries to rotate, [tokens, heads * rotated], ...
            column: ... from this column on.
            latents: [tokens, rank + rotated]: latents, and keys behind them.
            out: [tokens, heads * rank].
            tokens: How many.
        """


class Latents(Protocol):
    """The latents of all layers, and attention over them."""

    def attention(self, layer: int, heads: LatentHeads) -> LatentAttention:
        """The attention of a layer."""


class HeadLinear(Protocol):
    """A linear layer for each head, from columns of one buffer into another."""

    def __call__(self, x: Buffer, out: Buffer, rows: int) -> None:
        """The first heads * in columns of ``x`` [rows, ...] -> ``out`` [rows, heads * out]."""

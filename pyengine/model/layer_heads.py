"""The key and value heads of single layers, for models in which they differ. Imports no torch."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class LayerHeads:
    """The heads of one layer's keys and values.

    Attributes:
        kv_heads: How many.
        head_dim: Elements of each, and of queries' heads.
        reads: The layer whose keys and values this one attends to; None: it has its own.
    """

    kv_heads: int
    head_dim: int
    reads: int | None = None

    @property
    def size(self) -> int:
        """Numbers that a token's keys take in the cache, and its values."""
        return 0 if self.reads is not None else self.kv_heads * self.head_dim


def unit_of(heads: Sequence[LayerHeads]) -> int:
    """The numbers in a slot of a page: all layers take whole slots."""
    return math.gcd(*(layer.size for layer in heads))


def slots_by_layer(heads: Sequence[LayerHeads]) -> tuple[int, ...]:
    """How many slots of a page each layer takes; none where it has no cache of its own."""
    unit = unit_of(heads)
    return tuple(layer.size // unit for layer in heads)

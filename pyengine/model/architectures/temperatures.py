"""Factors of scores by the position of their query."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Temperatures:
    """Scores of a query are multiplied by 1 + scale * log(1 + floor((position + first) / every)).

    (Nakanishi, "Scalable-Softmax Is Superior for Attention", 2025, as Llama 4 has it.)
    """

    scale: float
    every: float
    first: int = 0

    def table(self, context: int) -> NDArray[np.float32]:
        """By position, float32 [context]."""
        positions = np.arange(context, dtype=np.float32) + np.float32(self.first)
        steps = np.floor(positions / np.float32(self.every))
        factors: NDArray[np.float32] = np.log1p(steps) * np.float32(self.scale) + np.float32(1)
        return factors

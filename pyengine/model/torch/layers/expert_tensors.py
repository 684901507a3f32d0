"""The weights of experts on a device."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from numpy.typing import NDArray

from pyengine.model.architectures.experts import ExpertWeights
from pyengine.model.torch.device.transfer import Transfer


@dataclass(frozen=True)
class ExpertTensors:
    """The weights of the experts that a rank has, or of its share of all.

    Attributes:
        count: Experts of all ranks.
        first: The number of the first one here.
        gate_up: [experts here, 2 * inner, hidden].
        down: [experts here, hidden, inner].
        gate_up_bias: [experts here, 2 * inner], or None.
        down_bias: [experts here, hidden], or None.
    """

    count: int
    first: int
    gate_up: torch.Tensor
    down: torch.Tensor
    gate_up_bias: torch.Tensor | None = None
    down_bias: torch.Tensor | None = None


def load_experts(weights: ExpertWeights, transfer: Transfer) -> ExpertTensors:
    """Copies of ``weights``; they are filled once ``transfer`` was waited for."""
    return ExpertTensors(
        weights.count,
        weights.first,
        transfer.matrices(weights.gate_up),
        transfer.matrices(weights.down),
        stacked_vectors(weights.gate_up_bias, transfer),
        stacked_vectors(weights.down_bias, transfer),
    )


def stacked_vectors(vectors: Sequence[NDArray[Any]], transfer: Transfer) -> torch.Tensor | None:
    """One of each expert, [experts, size]; None where there are none."""
    return torch.stack([transfer.vector(each) for each in vectors]) if vectors else None

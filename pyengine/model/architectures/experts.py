"""Mixtures of experts: how tokens are sent to them, and their weights."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from numpy.typing import NDArray

from pyengine.model.weights.matrix import Matrix


@dataclass(frozen=True)
class Routing:
    """How tokens are sent to experts.

    Attributes:
        chosen: Experts that a token goes to: those with the highest scores.
        sigmoid: Scores are sigmoids of the logits, not their softmax.
        normalized: The weights of the chosen are divided by their sum.
        scale: Multiplies the weights.
        groups: Groups of neighbouring experts, judged by the sum of their best scores.
        chosen_groups: Groups of which experts are chosen.
        group_best: How many of a group's scores judge it.
        weighs_inputs: Weights multiply what goes into an expert, not what comes out.
    """

    chosen: int
    sigmoid: bool = False
    normalized: bool = False
    scale: float = 1.0
    groups: int = 1
    chosen_groups: int = 1
    group_best: int = 2
    weighs_inputs: bool = False


@dataclass(frozen=True, eq=False)
class ExpertWeights:
    """The weights of a layer's experts: this rank's share of each, or its own experts as a whole.

    Attributes:
        count: Experts of all ranks.
        first: The number of the first one here.
        gate_up: Gates, then ups, of each expert: [2 * inner, hidden]; or ups alone.
        down: The down projection of each expert: [hidden, inner].
        gate_up_bias: A bias of each expert, floats [2 * inner]; none at all, or one each.
        down_bias: A bias of each expert, floats [hidden], which all ranks have where they share
            each expert; none at all, or one each.
        choice_bias: Floats [experts], added to the scores where experts are chosen.
        scales: Floats [experts], which multiply the weights of the chosen.
    """

    count: int
    first: int
    gate_up: Sequence[Matrix]
    down: Sequence[Matrix]
    gate_up_bias: Sequence[NDArray[Any]] = ()
    down_bias: Sequence[NDArray[Any]] = ()
    choice_bias: NDArray[Any] | None = None
    scales: NDArray[Any] | None = None

    @property
    def divided(self) -> bool:
        """Whether ranks have whole experts, not a share of each."""
        return len(self.down) < self.count

    @property
    def gated(self) -> bool:
        """Whether experts have gates, not ups alone."""
        return self.gate_up[0].shape[0] != self.down[0].shape[1]

    def added_by(self, rank: int) -> "ExpertWeights":
        """Returns the experts with the output biases that this rank adds; ranks share them out."""
        return self if self.divided or rank == 0 else replace(self, down_bias=())

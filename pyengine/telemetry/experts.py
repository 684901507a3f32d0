"""How evenly tokens are sent to the experts of a mixture."""

import msgspec


class ExpertLoad(msgspec.Struct, array_like=True, frozen=True):
    """The tokens that a layer sent to each of its experts since the engine started.

    A token counts for each expert that it chose, in every step that computed it: prompts, tokens,
    drafts, and what was computed again after a preemption.

    Attributes:
        layer: Which of the model, from 0.
        tokens: The tokens of each expert.
    """

    layer: int
    tokens: list[int]

    @property
    def imbalance(self) -> float:
        """The tokens of the busiest expert over the mean of all: 1 is even; 0 of no tokens."""
        total = sum(self.tokens)
        return max(self.tokens) * len(self.tokens) / total if total else 0.0

    def by_rank(self, ranks: int) -> "ExpertLoad":
        """The tokens of the experts of each of ``ranks``, which have equally many neighbours."""
        each = len(self.tokens) // ranks
        starts = range(0, len(self.tokens), each)
        return ExpertLoad(self.layer, [sum(self.tokens[at : at + each]) for at in starts])

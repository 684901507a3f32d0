"""The kernels that the sampler queues for a step."""

from typing import NamedTuple

from pyengine.model.batch import StepBuffers
from pyengine.sampling import MAX_LOGPROBS


class Wanted(NamedTuple):
    """The kernels that the sampler queues for a step; a graph is kept for each combination.

    Attributes:
        greedy: Every row is greedy, which takes one kernel.
        penalized: Some logits are penalized.
        top: Number of most likely tokens whose log-probabilities are wanted beside the sampled
            one's; -1: no log-probabilities. All steps that want any get the most there may be.
    """

    greedy: bool
    penalized: bool
    top: int

    @classmethod
    def by(cls, step: StepBuffers) -> "Wanted":
        """The kernels that ``step`` needs; its penalties must be filled."""
        top = MAX_LOGPROBS if step.max_logprobs else 0
        return cls(
            step.num_greedy == step.num_sampled,
            step.num_penalties > 0,
            top if step.num_logprobs_rows else -1,
        )

"""The results of a step on a torch device, in one block: on the device, and in a host set.

::

    counts | tokens ...... | chosen ....... | top tokens ............ | top log-probabilities ......
    by row   by logits row   float32 by it    [logits rows, 20]         float32, of the same shape
    └────── always ──────┘   └─ where wanted ┘└───────── where any of them are wanted ──────────┘
"""

from typing import NamedTuple

import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import LogProbs, Sampled
from pyengine.sampling import MAX_LOGPROBS


class Wanted(NamedTuple):
    """The kernels that the sampler queues for a step; a graph is kept for each combination.

    Attributes:
        greedy: Every row is greedy, which takes one kernel.
        penalized: Some logits are penalized.
        top: Log-probabilities, and of so many most likely tokens; -1 is none at all. All steps that
            want any of these get the same number, which is the most there may be.
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


class Results:
    """Views of one block of int32, the same on every kind of device.

    Attributes:
        counts: int32 [most sampling rows], how many of each row's tokens hold.
        tokens: int32 [most logits rows], what was sampled; -1 where nothing was possible.
        chosen: float32 [most logits rows], log-probabilities of ``tokens``.
        top_tokens: int32 [most logits rows, 20], the most likely, in order.
        top_logprobs: float32 of the same shape, theirs.
    """

    def __init__(self, layout: StepLayout, memory: torch.Tensor) -> None:
        """Views of ``memory``, int32 [:meth:`size`]."""
        fields = layout.fields()
        rows, logits = fields["sample_rows"][2], fields["logit_row"][2]
        self._memory = memory
        self._rows = rows
        top = logits * MAX_LOGPROBS
        self.counts, self.tokens, chosen, first, logprobs = torch.split(
            memory, [rows, logits, logits, top, top]
        )
        self.chosen = chosen.view(torch.float32)
        self.top_tokens = first.view(-1, MAX_LOGPROBS)
        self.top_logprobs = logprobs.view(torch.float32).view(-1, MAX_LOGPROBS)

    @staticmethod
    def size(layout: StepLayout) -> int:
        """Numbers in the block."""
        fields = layout.fields()
        return int(fields["sample_rows"][2] + fields["logit_row"][2] * (2 + 2 * MAX_LOGPROBS))

    def take(self, other: "Results", logits: int, top: int) -> None:
        """Queue the copy of what a step has in ``other``; see :class:`Wanted` for ``top``."""
        used = self._rows + logits
        self._memory[:used].copy_(other._memory[:used], non_blocking=True)
        if top >= 0:
            self.chosen[:logits].copy_(other.chosen[:logits], non_blocking=True)
        if top > 0:
            self.top_tokens[:logits].copy_(other.top_tokens[:logits], non_blocking=True)
            self.top_logprobs[:logits].copy_(other.top_logprobs[:logits], non_blocking=True)

    def read(self, step: StepBuffers) -> Sampled:
        """The tokens that ``step`` sampled, from a host block: arrays that share its memory."""
        logits, logprobs = step.num_logits, None
        if step.num_logprobs_rows:
            logprobs = LogProbs(
                self.top_tokens[:logits].numpy(),
                self.top_logprobs[:logits].numpy(),
                self.chosen[:logits].numpy(),
            )
        counts = self.counts[: step.num_sampled].numpy()
        return Sampled(self.tokens[:logits].numpy(), counts, logprobs)

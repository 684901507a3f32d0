"""Sampling on the CPU: the Rust sampler over the rules in the step buffers."""

from collections.abc import Callable
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuPenalties, CpuRules, CpuTensor
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import LogProbs
from pyengine.sampling import MAX_LOGPROBS


class Sampler:
    """Chooses the tokens of the steps in one set of buffers. One thread at a time.

    Attributes:
        tokens: int32 [most logits rows], what was chosen, by logits row of the step.
        kernel_tokens: The same memory, for the kernels.
        rules: What is sampled by which rules, for the kernels.
        counts: int32 [most sampling rows], how many of each sampling row's tokens hold.
    """

    def __init__(self, kernels: CpuKernels, buffers: StepBuffers) -> None:
        self._kernels = kernels
        self.rules = CpuRules(
            sampling=buffers.sampling.view(np.uint32),
            sample_position=buffers.sample_position,
            logit_start=buffers.logit_start,
            logit_row=buffers.logit_row,
            logit_token=buffers.logit_token,
            mask_row=buffers.mask_row,
            mask=buffers.mask,
        )
        self._buffers = buffers
        self._penalties = CpuPenalties(
            start=buffers.penalty_start,
            token=buffers.penalty_token,
            factor=buffers.penalty_factor,
            add=buffers.penalty_add,
            before=np.zeros(len(buffers.penalty_token), np.float32),
        )
        self.tokens: NDArray[np.int32] = np.zeros(len(buffers.logit_row), np.int32)
        self.counts: NDArray[np.int32] = np.zeros(len(buffers.sampling), np.int32)
        self._token_ids = CpuTensor(buffers.token_ids)
        self.kernel_tokens = CpuTensor(self.tokens)
        self._counts = CpuTensor(self.counts)

    def sample(
        self, logits: CpuTensor, first: int, rows: int, again: Callable[[], None] | None = None
    ) -> None:
        """Fill ``tokens[first : first + rows]`` from the first ``rows`` rows of ``logits``.

        Penalties are made in ``logits``. Log-probabilities are those of the model's own: ``again``
        makes these anew where others have changed them.
        """
        if self._buffers.num_penalties:
            self._kernels.apply_penalties(self._penalties, logits, first, rows)
        self._kernels.sample(self.rules, logits, self.kernel_tokens, first, rows)
        if self._buffers.num_logprobs_rows:
            if again is not None:
                again()
            elif self._buffers.num_penalties:
                self._kernels.restore(self._penalties, logits, first, rows)
            self._table.read(logits, first, rows)

    def score(self, logits: CpuTensor, first: int, rows: int) -> None:
        """Take the log-probabilities of the prompts' tokens behind the first ``rows`` rows of
        ``logits``, which are logits ``first`` to ``first + rows`` of prompts.
        """
        if not first:
            self._wanted_of_prompts[:] = self._buffers.max_prompt_logprobs
        self._prompt_table.read(logits, first, rows)

    def logprobs(self, count: int) -> LogProbs | None:
        """Log-probabilities of the first ``count`` logits rows, once sampled; None if not wanted.

        Valid until the next step.
        """
        return self._table.first(count) if self._buffers.num_logprobs_rows else None

    def prompt_logprobs(self, count: int) -> LogProbs:
        """Those of the first ``count`` logits of prompts, once scored; valid likewise."""
        return self._prompt_table.first(count)

    # Both are as large as a step may be, and made for the first step that wants them.

    @cached_property
    def _table(self) -> "LogProbTable":
        return LogProbTable(self._kernels, self._buffers.logprobs, self.tokens)

    @cached_property
    def _prompt_table(self) -> "LogProbTable":
        return LogProbTable(self._kernels, self._wanted_of_prompts, self._buffers.prompt_target)

    @cached_property
    def _wanted_of_prompts(self) -> NDArray[np.int32]:
        return np.zeros(len(self._buffers.prompt_token), np.int32)

    def verify(self, sampled: int) -> NDArray[np.int32]:
        """Compare the drafts with what was sampled; call it once every logits row is sampled.

        Returns ``counts[:sampled]``, int32: of the tokens from ``logit_start[row]`` on so many
        hold.
        """
        self._kernels.verify(self.rules, self._token_ids, self.kernel_tokens, self._counts, sampled)
        return self.counts[:sampled]


class LogProbTable:
    """Log-probabilities by row, for tokens that are chosen already. One thread at a time."""

    def __init__(
        self, kernels: CpuKernels, wanted: NDArray[np.int32], chosen: NDArray[np.int32]
    ) -> None:
        """For rows of which ``wanted`` says of how many likely tokens, -1 for none at all.

        Args:
            kernels: The kernels and their threads.
            wanted: int32 [rows].
            chosen: int32 [rows], the tokens whose own are told.
        """
        rows = len(wanted)
        self._kernels = kernels
        self._all = LogProbs(
            np.zeros((rows, MAX_LOGPROBS), np.int32),
            np.zeros((rows, MAX_LOGPROBS), np.float32),
            np.zeros(rows, np.float32),
        )
        self._inputs = CpuTensor(wanted), CpuTensor(chosen)
        tokens, logprobs, of_chosen = (CpuTensor(array) for array in self._all)
        self._outputs = tokens, logprobs, of_chosen

    def read(self, logits: CpuTensor, first: int, rows: int) -> None:
        """Fill rows ``first`` to ``first + rows`` from the first ``rows`` rows of ``logits``."""
        wanted, chosen = self._inputs
        self._kernels.top_logprobs(wanted, logits, chosen, *self._outputs, first, rows)

    def first(self, count: int) -> LogProbs:
        """The first ``count`` rows."""
        tokens, logprobs, chosen = self._all
        return LogProbs(tokens[:count], logprobs[:count], chosen[:count])

"""Sampling on the CPU: the Rust sampler over the rules in the step buffers."""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuPenalties, CpuRules, CpuTensor
from pyengine.model.batch import StepBuffers


class Sampler:
    """Chooses the tokens of the steps in one set of buffers. One thread at a time.

    Attributes:
        tokens: ``sampled_tokens`` of the buffers, for the kernels.
        rules: What is sampled by which rules, for the kernels.
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
        self._token_ids = CpuTensor(buffers.token_ids)
        self.tokens = CpuTensor(buffers.sampled_tokens)
        self._counts = CpuTensor(buffers.sampled_counts)
        self._table = LogProbTable(
            kernels,
            CpuTensor(buffers.logprobs),
            self.tokens,
            CpuTensor(buffers.top_tokens),
            CpuTensor(buffers.top_logprobs),
            CpuTensor(buffers.sampled_logprobs),
        )
        self._wanted_of_prompts: NDArray[np.int32] = np.zeros(len(buffers.prompt_token), np.int32)
        self._prompt_table = LogProbTable(
            kernels,
            CpuTensor(self._wanted_of_prompts),
            CpuTensor(buffers.prompt_target),
            CpuTensor(buffers.prompt_top_tokens),
            CpuTensor(buffers.prompt_top_logprobs),
            CpuTensor(buffers.prompt_logprobs),
        )

    def sample(
        self, logits: CpuTensor, first: int, rows: int, again: Callable[[], None] | None = None
    ) -> None:
        """Fill ``sampled_tokens[first : first + rows]`` from the first ``rows`` rows of ``logits``.

        Penalties are made in ``logits``. Log-probabilities are those of the model's own: ``again``
        makes these anew where others have changed them.
        """
        if self._buffers.num_penalties:
            self._kernels.apply_penalties(self._penalties, logits, first, rows)
        self._kernels.sample(self.rules, logits, self.tokens, first, rows)
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

    def verify(self, sampled: int) -> None:
        """Compare the drafts with what was sampled, and write ``sampled_counts``; call it once
        every logits row is sampled.
        """
        self._kernels.verify(self.rules, self._token_ids, self.tokens, self._counts, sampled)


class LogProbTable(NamedTuple):
    """Log-probabilities by row, for tokens that are chosen already. One thread at a time.

    Attributes:
        kernels: The kernels and their threads.
        wanted: int32 [rows], of how many likely tokens; -1 for none at all.
        chosen: int32 [rows], the tokens whose own are computed.
        tokens: int32 [rows, MAX_LOGPROBS], gets the most likely tokens.
        logprobs: float32 of the same shape, gets theirs.
        of_chosen: float32 [rows], gets the log-probability of each of ``chosen``.
    """

    kernels: CpuKernels
    wanted: CpuTensor
    chosen: CpuTensor
    tokens: CpuTensor
    logprobs: CpuTensor
    of_chosen: CpuTensor

    def read(self, logits: CpuTensor, first: int, rows: int) -> None:
        """Fill rows ``first`` to ``first + rows`` from the first ``rows`` rows of ``logits``."""
        outputs = self.tokens, self.logprobs, self.of_chosen
        self.kernels.top_logprobs(self.wanted, logits, self.chosen, *outputs, first, rows)

"""Sampling on the CPU: the Rust sampler over the rules in the step buffers."""

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuEdits, CpuKernels, CpuRules, CpuTensor
from pyengine.model.batch import StepBuffers


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
            temperature=buffers.temperature,
            top_k=buffers.top_k,
            top_p=buffers.top_p,
            min_p=buffers.min_p,
            seed=buffers.seed,
            sample_position=buffers.sample_position,
            logit_start=buffers.logit_start,
            logit_row=buffers.logit_row,
            logit_token=buffers.logit_token,
            mask_row=buffers.mask_row,
            mask=buffers.mask,
            mask_words=buffers.mask.shape[-1],
        )
        self._buffers = buffers
        self._edits = CpuEdits(
            start=buffers.edit_start,
            token=buffers.edit_token,
            factor=buffers.edit_factor,
            add=buffers.edit_add,
            before=np.zeros(len(buffers.edit_token), np.float32),
        )
        self.tokens: NDArray[np.int32] = np.zeros(len(buffers.logit_row), np.int32)
        self.counts: NDArray[np.int32] = np.zeros(len(buffers.temperature), np.int32)
        self._token_ids = CpuTensor(buffers.token_ids)
        self.kernel_tokens = CpuTensor(self.tokens)
        self._counts = CpuTensor(self.counts)

    def sample(self, logits: CpuTensor, first: int, rows: int) -> None:
        """Fill ``tokens[first : first + rows]`` from the first ``rows`` rows of ``logits``.

        Edits are made in ``logits``.
        """
        if self._buffers.num_edits:
            self._kernels.edit(self._edits, logits, first, rows)
        self._kernels.sample(self.rules, logits, self.kernel_tokens, first, rows)

    def verify(self, sampled: int) -> NDArray[np.int32]:
        """Compare the drafts with what was sampled; call it once every logits row is sampled.

        Returns ``counts[:sampled]``, int32: of the tokens from ``logit_start[row]`` on so many
        hold.
        """
        self._kernels.verify(self.rules, self._token_ids, self.kernel_tokens, self._counts, sampled)
        return self.counts[:sampled]

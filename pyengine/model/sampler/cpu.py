"""Sampling on the CPU: the Rust sampler over the rules in the step buffers."""

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuRules, CpuTensor
from pyengine.model.batch import StepBuffers
from pyengine.model.runner import Sampled
from pyengine.model.simulated import matching


class Sampler:
    """Chooses the tokens of the steps in one set of buffers. One thread at a time."""

    def __init__(self, kernels: CpuKernels, buffers: StepBuffers) -> None:
        self._kernels = kernels
        self._rules = CpuRules(
            buffers.temperature,
            buffers.top_k,
            buffers.top_p,
            buffers.min_p,
            buffers.seed,
            buffers.sample_position,
        )
        self.tokens: NDArray[np.int32] = np.zeros(len(buffers.sample_rows), np.int32)
        self._out = CpuTensor(self.tokens)

    def __call__(self, logits: CpuTensor, first: int, rows: int) -> None:
        """Sampled rows ``first`` to ``first + rows``, from the first rows of ``logits``."""
        self._kernels.sample(self._rules, logits, self._out, first, rows)

    def verify(self, buffers: StepBuffers) -> Sampled:
        """What was sampled, and how many tokens of each row count."""
        tokens = self.tokens[: buffers.num_logits]
        return Sampled(tokens, matching(buffers, tokens))

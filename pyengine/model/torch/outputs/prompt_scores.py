"""Log-probabilities of prompts on torch devices, made of a few rows of logits at a time."""

from dataclasses import dataclass
from typing import Protocol

import torch

from pyengine.kernels.sampling.top_logprobs import top_logprobs, top_logprobs_reference
from pyengine.model.runner import LogProbs
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.queue import DeviceQueue
from pyengine.sampling import MAX_LOGPROBS


class PromptModel(Protocol):
    """The model of a runner, as far as prompts' log-probabilities need it."""

    rows_per_call: int

    def prompt_logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Logits [rows, vocab_size] after ``prompt_token[first : first + rows]``."""


@dataclass(frozen=True)
class Scores:
    """Room for the log-probabilities of as many rows as a step has tokens.

    Attributes:
        chosen: float32 [rows], those of the prompt's own tokens.
        tokens: int32 [rows, 20], the most likely.
        logprobs: float32 [rows, 20], theirs.
    """

    chosen: torch.Tensor
    tokens: torch.Tensor
    logprobs: torch.Tensor

    @classmethod
    def of(cls, memory: torch.Tensor) -> "Scores":
        """Views of ``memory``, int32 [rows * (1 + 2 * 20)]."""
        rows = len(memory) // (1 + 2 * MAX_LOGPROBS)
        chosen, tokens, logprobs = torch.split(memory, [rows, *(rows * MAX_LOGPROBS,) * 2])
        shape = rows, MAX_LOGPROBS
        return cls(
            chosen.view(torch.float32),
            tokens.view(shape),
            logprobs.view(torch.float32).view(shape),
        )

    @staticmethod
    def size(rows: int) -> int:
        """Numbers in such memory."""
        return rows * (1 + 2 * MAX_LOGPROBS)

    def read(self, rows: int) -> LogProbs:
        """The first ``rows`` rows, on the host: arrays that share its memory."""
        return LogProbs(
            self.tokens[:rows].numpy(), self.logprobs[:rows].numpy(), self.chosen[:rows].numpy()
        )


class PromptScores:
    """Scores the prompts of the steps in one :class:`DeviceStep`. One thread at a time.

    Memory is taken with the first step that wants them. Nothing is read back.
    """

    def __init__(self, step: DeviceStep, max_tokens: int, queue: DeviceQueue) -> None:
        """For steps in ``step`` of at most ``max_tokens`` tokens."""
        self._step = step
        self._size = Scores.size(max_tokens)
        self._queue = queue
        self._scores: Scores | None = None
        on_gpu = step.memory.device.type == "cuda"
        self._top = top_logprobs if on_gpu else top_logprobs_reference

    def queue(self, model: PromptModel, host: Scores | None) -> Scores:
        """Queue the scores of the step in flight, whose forward pass is queued, and their copy.

        Args:
            model: Has computed the step.
            host: Room on the host, which takes the scores; None for new memory.

        Returns:
            ``host``, or the new memory.
        """
        step, device = self._step, self._step.memory.device
        count = step.host.num_prompt_logits
        most = MAX_LOGPROBS if step.host.max_prompt_logprobs else 0
        if self._scores is None:
            self._scores = Scores.of(torch.zeros(self._size, dtype=torch.int32, device=device))
        if host is None:
            host = Scores.of(self._queue.host_memory(4 * self._size).view(torch.int32))
        scores = self._scores
        for first in range(0, count, model.rows_per_call):
            rows = slice(first, min(first + model.rows_per_call, count))
            self._top(
                model.prompt_logits(step, rows.stop - first, first),
                step.prompt_target[rows],
                scores.tokens[rows, :most],
                scores.logprobs[rows, :most],
                scores.chosen[rows],
            )
        host.chosen[:count].copy_(scores.chosen[:count], non_blocking=True)
        if most:
            host.tokens[:count].copy_(scores.tokens[:count], non_blocking=True)
            host.logprobs[:count].copy_(scores.logprobs[:count], non_blocking=True)
        return host

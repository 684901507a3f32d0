"""Log-probabilities of prompts on torch devices, made of a few rows of logits at a time."""

from typing import Protocol

import torch

from pyengine.kernels.sampling.top_logprobs import top_logprobs, top_logprobs_reference
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.sampling import MAX_LOGPROBS


class PromptModel(Protocol):
    """The model of a runner, as far as prompts' log-probabilities need it."""

    rows_per_call: int

    def prompt_logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Logits [rows, vocab_size] after ``prompt_token[first : first + rows]``."""


def score_prompts(model: PromptModel, step: DeviceStep) -> None:
    """Queue the log-probabilities of the prompts of ``step``; its forward pass is queued."""
    count = step.host.num_prompt_logits
    most = MAX_LOGPROBS if step.host.max_prompt_logprobs else 0
    top = top_logprobs if step.memory.device.type == "cuda" else top_logprobs_reference
    for first in range(0, count, model.rows_per_call):
        rows = slice(first, min(first + model.rows_per_call, count))
        top(
            model.prompt_logits(step, rows.stop - first, first),
            step.prompt_target[rows],
            step.prompt_top_tokens[rows, :most],
            step.prompt_top_logprobs[rows, :most],
            step.prompt_logprobs[rows],
        )

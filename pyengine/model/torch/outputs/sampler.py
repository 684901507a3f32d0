"""Sampling on torch devices: Triton's kernels on a GPU, their references in torch elsewhere."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial
from typing import Any

import torch

from pyengine._core import StepLayout
from pyengine.kernels import feed
from pyengine.kernels.sampling import greedy, penalties, top_logprobs, verify
from pyengine.kernels.sampling import reference as sampling_reference
from pyengine.kernels.sampling import sample as sampling
from pyengine.kernels.sampling.inputs import SamplingInputs
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.outputs.wanted import Wanted

Call = Callable[..., None]


class TorchSampler:
    """Chooses the tokens of the steps in one :class:`DeviceStep`. One thread at a time.

    Nothing is read back: what was sampled last for each sequence stays on the device, for the step
    behind.

    Attributes:
        last_token: int32 [slots of the sequence table]: the last token of each.
    """

    def __init__(
        self, step: DeviceStep, layout: StepLayout, max_sequences: int, rows_per_call: int
    ) -> None:
        """For steps in ``step``, of ``layout``; at most ``rows_per_call`` rows are sampled at a
        time.
        """
        device = step.memory.device
        self._step = step
        self._inputs = SamplingInputs(
            **{field.name: getattr(step, field.name) for field in fields(SamplingInputs)}
        )
        numbers: dict[str, Any] = {"dtype": torch.int32, "device": device}
        self._compacted = torch.zeros_like(step.sampled_tokens)
        self._before = torch.zeros(len(step.penalty_add), device=device)
        self.last_token = torch.zeros(max_sequences, **numbers)
        on_gpu = device.type == "cuda"
        self._feed: Call = feed.feed if on_gpu else feed.feed_reference
        self._apply_penalties: Call = (
            penalties.apply_penalties if on_gpu else penalties.apply_penalties_reference
        )
        self._restore: Call = penalties.restore if on_gpu else penalties.restore_reference
        self._top: Call = top_logprobs.top_logprobs
        self._verify: Call = verify.verify if on_gpu else verify.verify_reference
        self._greedy: Call = greedy.greedy if on_gpu else greedy.greedy_reference
        self._sample: Call = sampling_reference.sample
        if on_gpu:
            vocabulary = 32 * layout.mask_words
            scratch = sampling.SamplingScratch.for_rows(rows_per_call, vocabulary, device)
            self._sample = partial(sampling.sample, scratch=scratch)
        else:
            self._top = top_logprobs.top_logprobs_reference

    def feed(self) -> None:
        """Fill in the tokens of the step that only the device knows."""
        step = self._step
        if step.host.num_feeds:
            self._feed(
                step.header, step.token_ids, step.feed_token, step.feed_sequence, self.last_token
            )

    def sample(
        self,
        logits: torch.Tensor,
        wanted: Wanted,
        first: int = 0,
        again: Callable[[], None] | None = None,
    ) -> None:
        """Choose the tokens of the logits rows from ``first`` on.

        Args:
            logits: [rows, vocabulary]; penalized in place, and with log-probabilities restored.
            wanted: What else the step wants.
            first: Logits row of the step that is the first of ``logits``.
            again: Makes ``logits`` anew, which others have changed; log-probabilities are those of
                the model's own.
        """
        step = self._step
        if wanted.penalized:
            entries = (
                step.penalty_start,
                step.penalty_token,
                step.penalty_factor,
                step.penalty_add,
            )
            kept = self._before if wanted.top >= 0 and again is None else None
            self._apply_penalties(logits, *entries, first, kept)
        sample = self._greedy if wanted.greedy else self._sample
        sample(self._inputs, logits, step.sampled_tokens, first)
        if wanted.top < 0:
            return
        if again is not None:
            again()
        elif wanted.penalized:
            self._restore(logits, step.penalty_start, step.penalty_token, self._before, first)
        rows = slice(first, first + len(logits))
        self._top(
            logits,
            step.sampled_tokens[rows],
            step.top_tokens[rows, : wanted.top],
            step.top_logprobs[rows, : wanted.top],
            step.sampled_logprobs[rows],
        )

    def verify(self) -> None:
        """Compare the drafts with what was sampled; once every logits row is sampled."""
        step = self._step
        self._verify(
            self._inputs,
            step.header,
            step.token_ids,
            step.sampled_tokens,
            step.sample_sequence,
            step.sampled_counts,
            self._compacted,
            self.last_token,
        )

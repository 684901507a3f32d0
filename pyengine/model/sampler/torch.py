"""Sampling on torch devices: Triton's kernels on a GPU, their references in torch elsewhere."""

from collections.abc import Callable
from dataclasses import fields
from functools import partial

import torch

from pyengine._core import StepLayout
from pyengine.kernels import edit, feed, sampling, sampling_reference, verify
from pyengine.kernels.inputs import SamplingInputs
from pyengine.model.device_step import DeviceStep


class TorchSampler:
    """Chooses the tokens of the steps in one :class:`DeviceStep`. One thread at a time.

    Nothing is read back: what was sampled last for each sequence stays on the device, for the step
    behind, and the results of a step lie in one piece, for one copy.

    Attributes:
        results: int32 [most sampling rows + most logits rows]: how many of each sampling row's
            tokens hold, then the token of each logits row, -1 where none was possible.
        last_token: int32 by slot of the sequence table.
    """

    def __init__(self, step: DeviceStep, layout: StepLayout, max_sequences: int) -> None:
        """For steps in ``step``, of ``layout``."""
        device = step.memory.device
        rows, logits = (layout.fields()[name][2] for name in ("sample_rows", "logit_row"))
        self._step = step
        self._inputs = SamplingInputs(
            **{field.name: getattr(step, field.name) for field in fields(SamplingInputs)}
        )
        self._rows = rows
        self.results = torch.zeros(rows + logits, dtype=torch.int32, device=device)
        self._counts, self._tokens = self.results[:rows], self.results[rows:]
        self._compacted = torch.zeros(logits, dtype=torch.int32, device=device)
        self.last_token = torch.zeros(max_sequences, dtype=torch.int32, device=device)
        on_gpu = device.type == "cuda"
        self._feed = feed.feed if on_gpu else feed.feed_reference
        self._edit = edit.edit if on_gpu else edit.edit_reference
        self._sample: Callable[..., None] = sampling_reference.sample
        if on_gpu:
            vocabulary = 32 * layout.mask_words  # or a little less
            scratch = sampling.SamplingScratch.for_rows(logits, vocabulary, device)
            self._sample = partial(sampling.sample, scratch=scratch)
        self._verify = verify.verify if on_gpu else verify.verify_reference

    def feed(self) -> None:
        """Fill in the tokens of the step that only the device knows."""
        step = self._step
        if step.host.num_feeds:
            self._feed(
                step.header, step.token_ids, step.feed_token, step.feed_sequence, self.last_token
            )

    def sample(self, logits: torch.Tensor, first: int = 0, *, edited: bool = False) -> None:
        """Choose the tokens of the logits rows from ``first`` on, [rows, vocabulary].

        ``edited``: the step has edits, which are made in ``logits``.
        """
        step = self._step
        if edited:
            edits = (step.edit_start, step.edit_token, step.edit_factor, step.edit_add)
            self._edit(logits, *edits, first)
        self._sample(self._inputs, logits, self._tokens, first)

    def verify(self) -> None:
        """Compare the drafts with what was sampled; once every logits row is sampled."""
        step = self._step
        self._verify(
            self._inputs,
            step.header,
            step.token_ids,
            self._tokens,
            step.sample_sequence,
            self._counts,
            self._compacted,
            self.last_token,
        )

    def used(self, logits: int) -> int:
        """How many of ``results`` a step with so many logits rows fills."""
        return self._rows + logits

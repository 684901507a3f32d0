"""Inputs of the sampling kernels: tensors by their names in the step buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine.kernels.sampling.rules import rule


@dataclass(frozen=True)
class SamplingInputs:
    """The rules of a step; see :class:`pyengine.model.batch.StepBuffers`, whose fields these are.

    A sampling row is a sequence that samples in the step; a logits row is one position of it: one,
    and one more for each of its draft tokens. Tensors may be longer than the step needs; they are
    read when a kernel runs, so that one object serves every step in the same buffers.

    Attributes:
        sampling: int32 [rows, words], the rules of each sampling row; see
            :mod:`.rules`.
        sample_position: int64 by sampling row, position of the row's first sampled token.
        logit_start: int32, one more than sampling rows: where the logits rows of each begin.
        logit_row: int32 by logits row, like the two that follow: its sampling row.
        logit_token: int32, the token of the step whose logits these are.
        mask_row: int32, row of ``mask``, or -1: every token may be sampled.
        mask: int32 [M, words], the bits of the masks: bit t % 32 of word t // 32 allows token t.
    """

    sampling: torch.Tensor
    sample_position: torch.Tensor
    logit_start: torch.Tensor
    logit_row: torch.Tensor
    logit_token: torch.Tensor
    mask_row: torch.Tensor
    mask: torch.Tensor

    def rule(self, name: str) -> torch.Tensor:
        """A view of one rule of every sampling row."""
        return rule(self.sampling, name)

    @classmethod
    def from_numpy(
        cls, arrays: Mapping[str, NDArray[Any]], device: torch.device | str
    ) -> "SamplingInputs":
        """Tensors on ``device`` of arrays by name; on the CPU they share the arrays' memory."""
        words = {
            "sampling": arrays["sampling"].view(np.int32).reshape(len(arrays["sampling"]), -1),
            "mask": arrays["mask"].view(np.int32),
        }
        shown = {**arrays, **words}
        return cls(
            **{field.name: torch.from_numpy(shown[field.name]).to(device) for field in fields(cls)}
        )

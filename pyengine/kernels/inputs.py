"""What the sampling kernels read of a step: tensors by their names in the step buffers."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

import torch
from numpy.typing import NDArray


@dataclass(frozen=True)
class SamplingInputs:
    """The rules of a step; see :class:`pyengine.model.batch.StepBuffers`, whose fields these are.

    A sampling row is a sequence that samples in the step; a logits row is one position of it: one,
    and one more for each of its draft tokens. Tensors may be longer than the step needs; they are
    read when a kernel runs, so that one object serves every step in the same buffers.

    Attributes:
        temperature: float32 by sampling row, like the five that follow; 0 is greedy.
        top_k: int32; 0 is off.
        top_p: float32; 1 is off.
        min_p: float32; 0 is off.
        seed: int64, the bits of the seed.
        sample_position: int64, position of the row's first sampled token.
        logit_start: int32, one more than sampling rows: where the logits rows of each begin.
        logit_row: int32 by logits row, like the two that follow: its sampling row.
        logit_token: int32, the token of the step whose logits these are.
        mask_row: int32, row of ``mask``, or -1: every token may be sampled.
        mask: int32 [M, words], the bits of the masks: bit t % 32 of word t // 32 allows token t.
    """

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor
    seed: torch.Tensor
    sample_position: torch.Tensor
    logit_start: torch.Tensor
    logit_row: torch.Tensor
    logit_token: torch.Tensor
    mask_row: torch.Tensor
    mask: torch.Tensor

    @classmethod
    def from_numpy(
        cls, arrays: Mapping[str, NDArray[Any]], device: torch.device | str
    ) -> "SamplingInputs":
        """Tensors on ``device`` of arrays by name; on the CPU they share the arrays' memory."""
        signed = {"seed": "int64", "mask": "int32"}
        return cls(
            **{
                field.name: torch.from_numpy(
                    arrays[field.name].view(signed.get(field.name, arrays[field.name].dtype))
                ).to(device)
                for field in fields(cls)
            }
        )

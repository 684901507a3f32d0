"""What computes a step on a torch device: the model, and the drafter beside it."""

from typing import Protocol

import torch

from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.outputs.sampler import TorchSampler


class StepModel(Protocol):
    """The model of a runner; see :class:`pyengine.model.torch.model.TorchModel`."""

    backend: AttentionBackend
    rows_per_call: int

    def forward(self, step: DeviceStep, tokens: int) -> None:
        """Compute the first ``tokens`` tokens, and store their keys and values."""

    def logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Logits [rows, vocab_size] after ``logit_token[first : first + rows]``."""

    def prompt_logits(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Logits [rows, vocab_size] after ``prompt_token[first : first + rows]``."""

    def states(self, step: DeviceStep, rows: int, first: int = 0) -> torch.Tensor:
        """Last hidden states [rows, hidden_size] of ``pool_token[first : first + rows]``."""

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot; returns its bytes."""


class Drafter(Protocol):
    """Fills in drafts on the device; see :class:`pyengine.model.torch.draft.TorchDraft`."""

    def fill(self, buffers: StepBuffers, step: DeviceStep, sampler: TorchSampler) -> None:
        """Queue the passes that fill in the drafts of a step, which is on the device by now;
        ``sampler`` has what the step before chose.
        """

    def learn(self, buffers: StepBuffers) -> None:
        """Take the tokens that a step sampled."""

    def close(self) -> None:
        """Give everything back. Idempotent."""

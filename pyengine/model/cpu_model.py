"""A model on the CPU with what its steps need: buffers, weights and cache, a sampler."""

import torch

from pyengine._core import CpuKernels, CpuStep, StepLayout
from pyengine.model.architectures import Architecture, find_architecture
from pyengine.model.batch import StepBuffers
from pyengine.model.layers import Kernels, Workspace
from pyengine.model.loader import Checkpoint
from pyengine.model.runner import Progress
from pyengine.model.sampler.cpu import Sampler
from pyengine.model.shape import ModelShape

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class CpuModel:
    """Computes the steps in one set of buffers. One thread at a time.

    Attributes:
        buffers: What it reads.
        sampler: Chooses the tokens.
        num_parameters: Of the model.
    """

    def __init__(
        self,
        shape: ModelShape,
        layout: StepLayout,
        kernels: CpuKernels,
        progress: Progress | None = None,
    ) -> None:
        """Load the weights and make the cache.

        Args:
            shape: The model and its cache.
            layout: Of the step buffers.
            kernels: The kernels and their threads.
            progress: Called with (bytes loaded, bytes in all).

        Raises:
            ModelLoadError: The model cannot be loaded; says why.
        """
        build = find_architecture(shape.info.architecture)
        self.buffers = buffers = StepBuffers(layout)
        self.sampler = Sampler(kernels, buffers)
        self._token_ids = torch.from_numpy(buffers.token_ids)
        self._logit_token = torch.from_numpy(buffers.logit_token)
        self._step = CpuStep(
            buffers.header,
            buffers.positions,
            buffers.slot_mapping,
            buffers.query_start,
            buffers.kv_length,
            buffers.page_indptr,
            buffers.page_indices,
        )
        device = Kernels(
            kernels=kernels,
            max_tokens=len(buffers.token_ids),
            max_sampled=len(buffers.logit_row),
            num_blocks=shape.num_blocks,
        )
        with (
            torch.inference_mode(),
            Checkpoint(shape.info.folder, DTYPES[shape.info.dtype], progress) as weights,
        ):
            self._model: Architecture = build(shape.info, shape.config, weights, device)
            self.num_parameters = weights.num_parameters

    @property
    def logits_rows(self) -> Workspace:
        """The logits of the rows that were sampled last, [rows, vocabulary]."""
        return self._model.logits_rows

    def forward(self) -> None:
        """Compute the tokens in the buffers; torch and the kernels release the GIL as they work."""
        with torch.inference_mode():
            self._model.forward(self._step, self._token_ids[: self.buffers.num_tokens])

    def choose(self) -> int:
        """Sample every logits row into ``sampler.tokens``; returns how many there are."""
        count, workspace = self.buffers.num_logits, self.logits_rows
        per_call = len(workspace.tensor)
        with torch.inference_mode():
            for first in range(0, count, per_call):
                last = self._logit_token[first : min(first + per_call, count)]
                self._model.logits(last)
                self.sampler.sample(workspace.kernel, first, len(last))
        return count

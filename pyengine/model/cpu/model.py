"""A model on the CPU with what its steps need: buffers, weights and cache, a sampler."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuProgram, CpuStates, CpuStep, CpuTensor, StepLayout
from pyengine.logits_processors import StepProcessing
from pyengine.model.architectures import Architecture, find_architecture
from pyengine.model.architectures.buffer import Buffer
from pyengine.model.batch import StepBuffers
from pyengine.model.cpu.adapters import CpuAdapterSlots
from pyengine.model.cpu.attention import CpuStepTensors
from pyengine.model.cpu.layers import CpuParts
from pyengine.model.cpu.sampler import Sampler
from pyengine.model.dtypes import FLOATS
from pyengine.model.progress import Progress
from pyengine.model.spec import ModelSpec
from pyengine.model.weights.loader import open_weights
from pyengine.telemetry.experts import ExpertLoad


class CpuModel:
    """Computes the steps in one set of buffers. One thread at a time.

    Attributes:
        buffers: What it reads.
        sampler: Chooses the tokens.
        adapters: The adapters of the model.
        num_parameters: The number of parameters of the model.
        weight_bytes: The bytes of its linear layers and tables, in memory.
        programs: Its forward pass, its logits, its last hidden states and its logits of prompts,
            recorded.
    """

    def __init__(
        self,
        spec: ModelSpec,
        layout: StepLayout,
        kernels: CpuKernels,
        progress: Progress | None = None,
    ) -> None:
        """Load the weights and make the cache.

        Args:
            spec: The model and its cache.
            layout: The layout of the step buffers.
            kernels: The kernels and their threads.
            progress: Called with (bytes loaded, bytes in all).

        Raises:
            ModelLoadError: The model cannot be loaded; says why.
        """
        build = find_architecture(spec.info.architecture)
        self.buffers = buffers = StepBuffers(layout)
        self.sampler = Sampler(kernels, buffers)
        self.adapters = CpuAdapterSlots(buffers)
        self._parts = CpuParts(
            kernels,
            FLOATS[spec.info.dtype],
            max_tokens=len(buffers.token_ids),
            max_sampled=len(buffers.logit_row),
            num_blocks=spec.num_blocks + spec.spare_pages,
            adapters=self.adapters,
        )
        with open_weights(spec, progress=progress) as weights:
            self._model: Architecture = build(spec.info, spec.config, weights, self._parts)
            self.num_parameters = weights.num_parameters
        self.weight_bytes = self._parts.weight_bytes
        self._step = step_tensors(buffers, self._parts.pool(spec.info).states, spec.info.max_draft)
        self.programs = self._record()

    def _record(self) -> tuple[CpuProgram, CpuProgram, CpuProgram, CpuProgram]:
        with self._parts.executor.recording() as forward:
            self._model.forward(self._step, 0)
        with self._parts.executor.recording() as logits:
            self._model.logits(self._step, 0)
        with self._parts.executor.recording() as states:
            self._model.states(self._step, 0)
        with self._parts.executor.recording() as prompt_logits:
            self._model.prompt_logits(self._step, 0)
        return forward, logits, states, prompt_logits

    @property
    def logits_rows(self) -> Buffer:
        """The logits of the rows that were sampled last, [rows, vocabulary]."""
        return self._model.logits_rows

    def forward(self) -> None:
        """Compute the tokens in the buffers; the GIL is released as the kernels work."""
        self.programs[0].run(self.buffers.num_tokens)

    def choose(self) -> None:
        """Sample every logits row, and write the results of the step."""
        count, workspace = self.buffers.num_logits, self.logits_rows
        per_call = len(workspace.tensor)
        for first in range(0, count, per_call):
            rows = min(per_call, count - first)
            self.programs[1].run(rows, first)
            again = None
            if processing := self.buffers.processing:
                again = partial(self.programs[1].run, rows, first)
                process(processing, workspace.tensor, first, rows, again)
            self.sampler.sample(workspace.kernel, first, rows, again)
        self.sampler.verify(self.buffers.num_sampled)
        self._pool()
        self._score()

    def _score(self) -> None:
        """Write the log-probabilities of the step's logits of prompts."""
        count, workspace = self.buffers.num_prompt_logits, self.logits_rows
        for first in range(0, count, len(workspace.tensor)):
            rows = min(len(workspace.tensor), count - first)
            self.programs[3].run(rows, first)
            self.sampler.score(workspace.kernel, first, rows)

    def expert_load(self) -> list[ExpertLoad]:
        """The load of each layer with experts so far."""
        layers = self._parts.expert_layers
        return [ExpertLoad(layer, experts.routed) for layer, experts in layers.items()]

    def _pool(self) -> None:
        """Write the sum of the states of each row that pools."""
        step, states = self.buffers, self._model.states_rows.tensor
        rows, tokens = step.num_pooled_rows, step.num_pooled_tokens
        if not rows:
            return
        sums = step.pooled[:rows]
        sums[:] = 0
        row_of = np.repeat(np.arange(rows), np.diff(step.pool_start[: rows + 1]))
        for first in range(0, tokens, len(states)):
            count = min(len(states), tokens - first)
            self.programs[2].run(count, first)
            pooled, begin = np.unique(row_of[first : first + count], return_index=True)
            sums[pooled] += np.add.reduceat(states[:count].astype(np.float32), begin, axis=0)


def step_tensors(
    buffers: StepBuffers, states: NDArray[np.float32], max_draft: int
) -> CpuStepTensors:
    """The views of ``buffers`` that kernels read.

    Args:
        buffers: The buffers of the steps.
        states: float32 [slots, floats]: see :class:`pyengine.model.cpu.pool.Pool`.
        max_draft: Most drafts of a row that states have room for.
    """
    attention = [
        CpuStep(
            buffers.header,
            buffers.positions,
            table.slot_mapping,
            buffers.query_start,
            table.kv_length,
            table.page_indptr,
            buffers.page_indices,
        )
        for table in buffers.page_tables
    ]
    states_of_rows = None
    if len(states):
        states_of_rows = CpuStates(
            buffers.header,
            buffers.query_start,
            buffers.state_slot,
            buffers.state_source,
            buffers.state_accepted,
            buffers.state_drafts,
            buffers.snapshot_slot,
            buffers.snapshot_tokens,
            states,
            max_draft,
        )
    return CpuStepTensors(
        CpuTensor(buffers.token_ids),
        CpuTensor(buffers.positions),
        CpuTensor(buffers.logit_token),
        CpuTensor(buffers.pool_token),
        CpuTensor(buffers.prompt_token),
        attention,
        states_of_rows,
    )


def process(
    processing: StepProcessing,
    logits: NDArray[Any],
    first: int,
    rows: int,
    again: Callable[[], None],
) -> None:
    """Let logits processors change the first ``rows`` rows of ``logits``, in float32."""
    logits = logits[:rows]
    if logits.dtype == np.float32:
        processing.process(logits, first, rows, again)
        return
    copy = logits.astype(np.float32)

    def copied_again() -> None:
        again()
        copy[:] = logits

    processing.process(copy, first, rows, copied_again)
    logits[:] = copy

"""The CPU as a device: a launch computes the whole step, and its tokens are there."""

import time
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray

from pyengine._core import CpuKernels, CpuStep, StepLayout
from pyengine.config import EngineConfig
from pyengine.model.architectures import Architecture, find_architecture
from pyengine.model.batch import BufferRing, StepBuffers
from pyengine.model.layers import Kernels
from pyengine.model.loader import Checkpoint
from pyengine.model.runner import ModelInfo, Progress
from pyengine.model.sampler.cpu import Sampler
from pyengine.model.shape import ModelShape, describe, make_layout

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


# Below this many bytes of weights a step is over before a second thread has woken up: with the demo
# model (9 MB in float32) one thread decodes faster than two, alone and in batches of up to 16.
ONE_THREAD_BYTES = 32 << 20


def default_threads(info: ModelInfo) -> int:
    """Threads of a step unless configured: the machine's, or one for a tiny model."""
    weights = sum(path.stat().st_size for path in info.folder.glob("*.safetensors"))
    return 1 if weights < ONE_THREAD_BYTES else torch.get_num_threads()


class CpuStepHandle:
    """A step that is over.

    Attributes:
        start_ns: ``time.monotonic_ns()`` at its beginning.
        end_ns: At its end.
    """

    def __init__(self, tokens: NDArray[np.int32], start_ns: int) -> None:
        self.start_ns = start_ns
        self.end_ns = time.monotonic_ns()
        self._tokens = tokens

    def wait(self) -> NDArray[np.int32]:
        """The sampled tokens, int32 [num_sampled]; does not block."""
        return self._tokens


class CpuRunner:
    """A model on the CPU, behind the interface of :class:`pyengine.model.runner.ModelRunner`.

    Owns weights, KV cache and threads: torch's (which are the process's, so that the last runner
    made decides their number) and the kernels'. Only the scheduler's thread may call it.

    Attributes:
        overlap: 0: launch computes.
    """

    overlap = 0

    def __init__(
        self,
        shape: ModelShape,
        layout: StepLayout,
        *,
        max_sequences: int,
        threads: int,
        progress: Progress | None = None,
    ) -> None:
        """Load the model.

        Args:
            shape: The model and its cache.
            layout: Of the step buffers.
            max_sequences: Slots of the sequence table.
            threads: CPU threads of a step.
            progress: Called with (bytes loaded, bytes in all).

        Raises:
            ModelLoadError: The model cannot be loaded; says why.
        """
        self.layout = layout
        self.num_blocks = shape.num_blocks
        build = find_architecture(shape.info.architecture)
        torch.set_num_threads(threads)
        memory = torch.zeros(layout.nbytes, dtype=torch.uint8).numpy()
        self._buffers = StepBuffers(layout, memory)
        self._ring = BufferRing(1, lambda: self._buffers)
        self._token_ids = torch.from_numpy(self._buffers.token_ids)
        self._last_token = np.zeros(max_sequences, np.int32)
        device = Kernels(
            kernels=CpuKernels(threads),
            max_tokens=len(self._buffers.token_ids),
            max_sampled=len(self._buffers.sample_rows),
            num_blocks=shape.num_blocks,
        )
        self._step = CpuStep(
            self._buffers.header,
            self._buffers.positions,
            self._buffers.slot_mapping,
            self._buffers.query_start,
            self._buffers.kv_length,
            self._buffers.page_indptr,
            self._buffers.page_indices,
        )
        self._sampler = Sampler(device.kernels, self._buffers)
        with (
            torch.inference_mode(),
            Checkpoint(shape.info.folder, DTYPES[shape.info.dtype], progress) as weights,
        ):
            self._model: Architecture | None = build(shape.info, shape.config, weights, device)
            parameters = weights.num_parameters
        self.info: ModelInfo = replace(shape.info, num_parameters=parameters)
        self.device = f"cpu, {self.info.dtype}, {threads} thread{'s' if threads > 1 else ''}"

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress | None = None) -> "CpuRunner":
        """The runner of ``config``; see :func:`pyengine.model.devices.load_runner`."""
        shape = describe(config)
        return cls(
            shape,
            make_layout(config, shape.info),
            max_sequences=config.limits.max_sequences,
            threads=config.threads or default_threads(shape.info),
            progress=progress,
        )

    def buffers(self) -> StepBuffers:
        """The set of buffers to plan into; there is one, and it is free between launches."""
        return self._ring.free()

    def launch(self, buffers: StepBuffers) -> CpuStepHandle:
        """Compute the step in ``buffers``; torch and the kernels release the GIL as they work."""
        model = self._model
        if model is None:
            raise RuntimeError("the runner is closed")
        index = self._ring.take(buffers)
        start_ns = time.monotonic_ns()
        try:
            with torch.inference_mode():
                return CpuStepHandle(self._compute(model, buffers), start_ns)
        finally:
            self._ring.give_back(index)

    def close(self) -> None:
        """Give weights and cache back. Idempotent."""
        self._model = None

    def _compute(self, model: Architecture, buffers: StepBuffers) -> NDArray[np.int32]:
        buffers.feed(self._last_token)
        model.forward(self._step, self._token_ids[: buffers.num_tokens])
        count = buffers.num_sampled
        tokens = self._sampler.tokens[:count]
        if count:
            last = torch.from_numpy(buffers.query_start[buffers.sample_rows[:count] + 1] - 1)
            per_call = len(model.logits_rows.tensor)
            for first in range(0, count, per_call):
                rows = model.logits(last[first : first + per_call])
                self._sampler(model.logits_rows.kernel, first, len(rows))
            self._last_token[buffers.sample_sequence[:count]] = tokens
        return tokens

"""The CPU as a device: a launch computes the whole step, and its tokens are there."""

import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from pyengine._core import CpuKernels, StepLayout
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import BufferRing, StepBuffers
from pyengine.model.cpu.cores import node_words, usable_cores
from pyengine.model.cpu.draft import DraftModel
from pyengine.model.cpu.model import CpuModel
from pyengine.model.progress import Progress
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import ModelSpec, describe, make_layout
from pyengine.model.weights.folder import weight_bytes
from pyengine.settings.config import EngineConfig
from pyengine.telemetry.experts import ExpertLoad

# Below this many bytes of weights a step is over before a second thread has woken up: with the demo
# model (9 MB in float32) one thread decodes faster than two, alone and in batches of up to 16.
ONE_THREAD_BYTES = 32 << 20


def default_threads(spec: ModelSpec) -> int:
    """Threads of a step unless configured: one for each core, or one for a tiny model."""
    weights = weight_bytes(spec.info.folder, spec.config)
    tiny = weights < ONE_THREAD_BYTES and not spec.dummy
    return 1 if tiny else usable_cores()


class CpuStepHandle:
    """A step whose forward pass is over.

    Attributes:
        start_ns: ``time.monotonic_ns()`` at its beginning.
        end_ns: At its end; 0 until it is sampled.
        waited_ns: From when to when masks and penalties were filled, between forward pass and
        sampling.
    """

    def __init__(
        self, buffers: StepBuffers, sample: Callable[[], None], over: Callable[[], None]
    ) -> None:
        """Tokens are chosen by ``sample`` into ``buffers``; ``over`` is called when these are
        free.
        """
        self.start_ns = time.monotonic_ns()
        self.end_ns = 0
        self.waited_ns = (0, 0)
        self._buffers = buffers
        self._sample = sample
        self._over = over

    def forward_is_over(self) -> None:
        """From now on it waits for its masks."""
        now = time.monotonic_ns()
        self.waited_ns = (now, now)

    def sample(self) -> None:
        """Choose the tokens; they are there when it returns."""
        if self._buffers.late:
            self.waited_ns = (self.waited_ns[0], time.monotonic_ns())
        try:
            self._sample()
        except BaseException:
            self._over()
            raise
        self.end_ns = time.monotonic_ns()

    def wait(self) -> StepBuffers:
        """The step's buffers with its results; does not block."""
        if not self.end_ns:
            raise RuntimeError("the step was not sampled")
        self._over()
        return self._buffers


class CpuRunner:
    """A model on the CPU, behind the interface of :class:`pyengine.model.runner.ModelRunner`.

    Owns weights, KV cache and threads. Only the scheduler's thread may call it.

    Attributes:
        overlap: 0: launch computes.
        notes: What the weights take, by name, in words.
    """

    overlap = 0

    def __init__(
        self,
        spec: ModelSpec,
        layout: StepLayout,
        *,
        max_sequences: int,
        threads: int,
        progress: Progress | None = None,
    ) -> None:
        """Load the model.

        Args:
            spec: The model and its cache.
            layout: The layout of the step buffers.
            max_sequences: Slots of the sequence table.
            threads: CPU threads of a step.
            progress: Called with (bytes loaded, bytes in all).

        Raises:
            ModelLoadError: The model cannot be loaded; says why.
        """
        self.layout = layout
        self.num_blocks = spec.num_blocks
        kernels = CpuKernels(threads)
        model = CpuModel(spec, layout, kernels, progress)
        self._model: CpuModel | None = model
        self._draft = (
            DraftModel(spec.draft, spec.info.vocab_size, layout, kernels) if spec.draft else None
        )
        size = f"{model.weight_bytes / 2**20:,.1f} MiB"
        self.notes: Mapping[str, str] = MappingProxyType({"weights": size} | spec.notes)
        self._ring = BufferRing(1, lambda: model.buffers)
        self._last_token = np.zeros(max_sequences, np.int32)
        self.info: ModelInfo = replace(spec.info, num_parameters=model.num_parameters)
        many = f"{threads} thread{'s' if threads > 1 else ''}"
        self.device = f"cpu, {self.info.dtype}, {many}{node_words()}"

    @classmethod
    def from_config(cls, config: EngineConfig, progress: Progress | None = None) -> "CpuRunner":
        """The runner of ``config``; see :func:`pyengine.model.devices.load_runner`."""
        spec = describe(config)
        return cls(
            spec,
            make_layout(config, spec.info),
            max_sequences=config.limits.max_sequences,
            threads=config.threads or default_threads(spec),
            progress=progress,
        )

    def buffers(self) -> StepBuffers:
        """The set of buffers to plan into; there is one, and it is free between launches."""
        return self._ring.free()

    def launch(self, buffers: StepBuffers) -> CpuStepHandle:
        """Compute the forward pass, the draft model's before it if it is to draft."""
        model = self._model
        if model is None:
            raise RuntimeError("the runner is closed")
        index = self._ring.take(buffers)
        handle = CpuStepHandle(
            buffers, lambda: self._sample(model, buffers), lambda: self._ring.give_back(index)
        )
        try:
            buffers.feed(self._last_token)
            if self._draft is not None:
                self._draft.fill(buffers)
            model.forward()
        except BaseException:
            self._ring.give_back(index)
            raise
        handle.forward_is_over()
        return handle

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot."""
        return 0 if self._model is None else self._model.adapters.set(slot, adapter)

    def expert_load(self) -> list[ExpertLoad]:
        """As of now."""
        return [] if self._model is None else self._model.expert_load()

    def close(self) -> None:
        """Give weights and cache back. Idempotent."""
        self._model = self._draft = None

    def _sample(self, model: CpuModel, buffers: StepBuffers) -> None:
        model.choose()
        rows, counts = buffers.num_sampled, buffers.counts
        self._last_token[buffers.sample_sequence[:rows]] = buffers.sampled_tokens[
            buffers.logit_start[:rows] + counts - 1
        ]

"""Steps on a torch device: queued on one stream, overlapped, replayed from graphs.

::

    CPU     plan │ launch ── copy, plan attention, feed, forward ──┐ sample ── masks, logits,
            N+1  │                                                 │           sampler, copy back
    device  ── step N ──────────────┤├─ copy ─ feed ─ forward ─────┤├─ logits ─ sampler ─ copy ─┤
                                     start           (masks, penalties) └────────────────────── end

Nothing waits on the way. Only the tokens of a step are read back, into pinned memory, when the step
is done; the last token of each sequence also stays on the device, where the next step takes it.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

from pyengine._core import StepLayout
from pyengine.errors import EngineDeadError
from pyengine.model.adapters.peft import AdapterFile
from pyengine.model.batch import BufferRing, StepBuffers
from pyengine.model.runner import ModelInfo
from pyengine.model.torch.attention.backend import Rehearsal
from pyengine.model.torch.device.clock import DeviceClock
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.graphs import Graphs, Key
from pyengine.model.torch.device.queue import DeviceQueue
from pyengine.model.torch.layers.experts.counts import CountedExperts, ExpertCounts
from pyengine.model.torch.outputs.pool import pool
from pyengine.model.torch.outputs.prompt_scores import score_prompts
from pyengine.model.torch.outputs.sampler import TorchSampler
from pyengine.model.torch.outputs.wanted import Wanted
from pyengine.model.torch.step.in_flight import HostSet, TorchStep
from pyengine.model.torch.step.model import Drafter, StepModel
from pyengine.model.torch.step.work import StepWork
from pyengine.telemetry.experts import ExpertLoad


class TorchRunner:
    """A model on a torch device, behind :class:`pyengine.model.runner.ModelRunner`.

    Only the scheduler's thread may call it. The work in Python is the same for a step of any size.

    Attributes:
        info: The model.
        layout: The layout of the step buffers.
        num_blocks: KV blocks.
        overlap: 1 on a GPU, 0 on the CPU.
        device: The device in words.
        notes: Other facts for the summary at the start, by name, in words.
        graphs: The graphs of its steps; None if it has none.
        draft: Fills in drafts, if there is a draft model.
    """

    def __init__(
        self,
        model: StepModel,
        info: ModelInfo,
        layout: StepLayout,
        queue: DeviceQueue,
        *,
        num_blocks: int,
        max_sequences: int,
        graphs: Graphs | None = None,
        draft: Drafter | None = None,
        expert_layers: Mapping[int, CountedExperts] | None = None,
        device: str = "torch",
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """A runner of ``model``, whose weights and cache are on the device.

        Args:
            model: On the queue's device.
            info: The model's dimensions and data types.
            layout: The layout of the step buffers.
            queue: Where work is queued.
            num_blocks: KV blocks of the model.
            max_sequences: Slots of the sequence table.
            graphs: Keeps graphs; None: every step is queued kernel by kernel.
            draft: Fills in the drafts that steps leave open.
            expert_layers: The experts of each layer of the model that has some.
            device: The device in words.
            notes: Other facts for the summary at the start.
        """
        self.info = info
        self.layout = layout
        self.num_blocks = num_blocks
        self.overlap = queue.overlap
        self.device = device
        self.notes: Mapping[str, str] = notes or {}
        self.graphs = graphs
        self.draft = draft
        self._model: StepModel | None = model
        self._queue = queue
        self._sets = [HostSet(layout, queue) for _ in range(self.overlap + 1)]
        sets = iter(self._sets)
        self._ring = BufferRing(len(self._sets), lambda: next(sets).buffers)
        # If several host sets take turns, the device has memory of its own.
        self._step = DeviceStep(
            layout, queue.device, self._sets[0].buffers, shared=self.overlap == 0
        )
        self._sampler = TorchSampler(self._step, layout, max_sequences, model.rows_per_call)
        self._work = StepWork(layout, self._step, self._sampler, draft)
        self._experts = ExpertCounts(expert_layers or {}, queue)
        self._unsampled: TorchStep | None = None
        if graphs is not None:
            graphs.on_evict = self._on_graph_evicted
        self._clock = _started_clock(queue)

    def buffers(self) -> StepBuffers:
        """The free set of buffers to plan into."""
        return self._ring.free()

    def launch(self, buffers: StepBuffers) -> TorchStep:
        """Queue the copy and the forward pass of ``buffers``.

        Raises:
            RuntimeError: The runner is closed, or the step before was not sampled.
            EngineDeadError: The device failed, and does no work any more; as of the other calls.
        """
        model = self._open_model()
        if self._unsampled is not None:
            raise RuntimeError("the step before is not sampled yet")
        index = self._ring.take(buffers)
        step = TorchStep(self, index, self._sets[index])
        try:
            with self._queue.working():
                step.start = self._queue.mark()
                self._work.forward(model, self.graphs, step)
                if buffers.late:
                    step.forwarded = self._queue.mark()
        except BaseException as error:
            self._abandon(step, error)
            raise
        self._unsampled = step
        return step

    def sample(self, step: TorchStep) -> None:
        """Queue masks, penalties, logits and sampling of ``step``, and the copy of its results."""
        model = self._open_model()
        if self._unsampled is not step:
            raise RuntimeError("the step is sampled already")
        self._unsampled = None
        host_set, logits = step.host_set, step.buffers.num_logits
        wanted = Wanted.by(step.buffers)
        try:
            with self._queue.working():
                if step.forwarded is not None:
                    step.completed = self._queue.mark()
                    self._step.take_late(host_set.memory, self._work.logits_rows(model, logits))
                self._work.sample(model, self.graphs, step, wanted)
                if step.buffers.num_pooled_rows:
                    pool(model, self._step)
                if step.buffers.num_prompt_logits:
                    score_prompts(model, self._step)
                self._step.give_back(host_set.memory)
                step.end = self._queue.mark()
                if step.capture is not None and self.graphs is not None:
                    self.graphs.capture(*step.capture)
        except BaseException as error:
            self._abandon(step, error)
            raise

    def wait(self, step: TorchStep) -> StepBuffers:
        """Wait for the results of ``step``; its host set is free then."""
        if step.end is None or step.start is None:
            raise RuntimeError("the step was not sampled")
        try:
            slept = step.end.wait()
        except BaseException as error:
            self._abandon(step, error)
            raise
        self._ring.give_back(step.index)
        waited = (
            None
            if step.forwarded is None or step.completed is None
            else (step.forwarded, step.completed)
        )
        step.start_ns, step.waited_ns, step.end_ns = self._clock.step(
            step.start,
            step.end,
            waited,
            launched_ns=step.launched_ns,
            returned_ns=time.monotonic_ns(),
            slept=slept,
        )
        if self.draft is not None:
            self.draft.learn(step.buffers)
        return step.buffers

    def rehearse(self, buffers: StepBuffers, variant: str) -> None:
        """Compute the forward pass of ``buffers``, attending by ``variant``, and wait for it.

        Nothing is in flight, and nothing is sampled.
        """
        model, device = self._open_model(), self._step
        rows, tokens = buffers.num_rows, buffers.num_tokens
        memory = next(each.memory for each in self._sets if each.buffers is buffers)
        with self._queue.working():
            device.host = buffers
            model.backend.variant(device)  # notes what rows share
            self.layout.pad(buffers.memory, rows, tokens, buffers.num_logits)
            device.take(buffers, memory, buffers.num_pages)
            model.backend.plan(device, variant, rows, tokens, captured=False)
            self._sampler.feed()
            model.forward(device, tokens)
        self._queue.finish()

    @property
    def rehearsals(self) -> Sequence[Rehearsal]:
        """Steps that between them take every kernel of attention that a step may take."""
        return self._open_model().backend.rehearsals()

    def set_adapter(self, slot: int, adapter: AdapterFile | None) -> int:
        """Put an adapter, or none, into a slot."""
        return self._open_model().set_adapter(slot, adapter)

    def expert_load(self) -> list[ExpertLoad]:
        """As of now where no step is in flight, else as of the call before at the latest."""
        return self._experts.read(idle=self._ring.idle)

    def count_experts_anew(self) -> None:
        """Leave out of the load what was computed so far; nothing is in flight."""
        self._experts.forget()

    def close(self) -> None:
        """Give weights, cache and graphs back. Idempotent."""
        if self._model is None:
            return
        with suppress(Exception):  # a device that failed has nothing left to do
            self._queue.finish()
        self._model = None
        if self.draft is not None:
            self.draft.close()
        if self.graphs is not None:
            self.graphs.clear()
        with suppress(Exception):
            self._queue.release()

    def _open_model(self) -> StepModel:
        if self._model is None:
            raise RuntimeError("the runner is closed")
        return self._model

    def _on_graph_evicted(self, key: Key) -> None:
        assert isinstance(key, tuple)
        if key[0] == "forward" and self._model is not None:
            _, variant, size = key
            self._model.backend.forget(variant, size)

    def _abandon(self, step: TorchStep, error: BaseException) -> None:
        """End a step that failed with ``error``: free its host set once the device no longer reads
        it.

        Raises:
            EngineDeadError: The device does no work any more.
        """
        with suppress(Exception):  # what the step queued may have failed, as the caller says
            self._queue.finish()
        self._ring.give_back(step.index)
        try:
            self._queue.probe()
        except Exception as dead:
            raise EngineDeadError(
                f"the device of the engine fails every call since a step failed with {error!r}; a "
                "new process can use it again, if it is sound"
            ) from dead


def _started_clock(queue: DeviceQueue) -> DeviceClock:
    # Weights and buffers were made on another stream, for which this one does not wait.
    queue.finish()
    with queue.working():
        mark = queue.mark()
        mark.wait()
    return DeviceClock(mark, time.monotonic_ns())

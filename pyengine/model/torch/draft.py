"""The draft model on a torch device: fills in the drafts of a step behind its copy, without a
return to the host.

::

    step     a a a D D │ b │ c D     D: drafts to be filled in; b has none
    pass 1   x x a a a │ c           what the cache lacks (x) and what is known; a draft for a and c
               │ last tokens ──────► places of the step; fed to
    pass 2   D                       the second draft for a

The host lays a pass out while the device works on the one before: it knows where tokens are, only
not which.

Drafts are sampled by each row's own rules, with the noise of its own seed and positions,
as :mod:`pyengine.model.cpu.draft` does on the CPU; masks and penalties do not apply to them.
"""

from collections.abc import Mapping

import torch

from pyengine._core import DraftPasses, StepLayout
from pyengine.kernels.hand_over import (
    hand_over,
    hand_over_reference,
    take_tokens,
    take_tokens_reference,
)
from pyengine.model.batch import StepBuffers
from pyengine.model.cache_groups import allocated, tables_of
from pyengine.model.runner import ModelInfo
from pyengine.model.spec import ModelSpec
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.graphs import Graphs
from pyengine.model.torch.device.queue import DeviceQueue, EventMark
from pyengine.model.torch.outputs.sampler import TorchSampler
from pyengine.model.torch.outputs.wanted import Wanted
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.step.in_flight import HostSet, TorchStep
from pyengine.model.torch.step.model import StepModel


def pass_layout(layout: StepLayout, draft: ModelInfo) -> StepLayout:
    """The layout of the passes of ``draft`` for steps of ``layout``."""
    lengths = {name: length for name, (_, _, length) in layout.fields().items()}
    rows = lengths["sample_rows"]
    return StepLayout(
        max(lengths["token_ids"], rows),
        rows,
        lengths["page_indices"],
        vocab_size=draft.vocab_size,
        tables=tables_of(draft.cache_groups),
    )


class TorchDraft(TorchRunner):
    """A small model that drafts for the steps of a larger one. One thread at a time.

    It is a runner of its own passes, with its own cache over the same pages and its own graphs.
    The host does not wait for a pass.
    """

    def __init__(
        self,
        model: StepModel,
        spec: ModelSpec,
        layout: StepLayout,
        queue: DeviceQueue,
        *,
        vocab_size: int,
        max_sequences: int,
        max_draft: int,
        graphs: Graphs | None = None,
        notes: Mapping[str, str] | None = None,
    ) -> None:
        """A drafter that works on the queue of the model that it drafts for.

        Args:
            model: The draft model, made for :func:`pass_layout`.
            spec: Its dimensions and data types, and the pages of both models.
            layout: The layout of the larger model's steps.
            queue: Where both models work.
            vocab_size: The vocabulary size of the larger model.
            max_sequences: Slots of the sequence table.
            max_draft: Most drafts of a row.
            graphs: Keeps the graphs of its passes.
            notes: Other facts for the summary at the start.
        """
        info, passes = spec.info, pass_layout(layout, spec.info)
        super().__init__(
            model,
            info,
            passes,
            queue,
            num_blocks=spec.num_blocks,
            max_sequences=max_sequences,
            graphs=graphs,
            notes=notes,
        )
        self._vocab_size = min(vocab_size, info.vocab_size)
        self._passes = DraftPasses(
            layout,
            passes,
            num_blocks=spec.num_blocks,
            block_size=info.block_size,
            vocab_size=self._vocab_size,
            groups=allocated(info.cache_groups),
            spare_blocks=spec.spare_blocks,
        )
        # A host set is free when its pass is done: with a set for each pass the host seldom waits.
        more = max_draft + 1 - len(self._sets) if self.overlap else 0
        self._sets += [HostSet(passes, queue) for _ in range(more)]
        rows = passes.fields()["sample_rows"][2]
        self._host_places = [queue.host_memory(8 * rows).view(torch.int64) for _ in self._sets]
        self._places = torch.zeros(rows, dtype=torch.int64, device=queue.device)
        on_gpu = queue.device.type == "cuda"
        self._hand_over = hand_over if on_gpu else hand_over_reference
        self._take_tokens = take_tokens if on_gpu else take_tokens_reference
        self._done: list[EventMark | None] = [None] * len(self._sets)
        self._turn = 0
        self._compile_kernels(queue)

    def _compile_kernels(self, queue: DeviceQueue) -> None:
        """Compile the kernels of a hand-over before requests come."""
        with queue.working():
            self._hand_over_to(torch.zeros_like(self._step.token_ids), 1)
            self._take_from(self._sampler)

    def fill(self, buffers: StepBuffers, step: DeviceStep, sampler: TorchSampler) -> None:
        """Queue the passes that fill in the drafts of a step, which is on the device by now.

        Args:
            buffers: The step as it was planned; every step is shown, with drafts or without.
            step: Where it is on the device.
            sampler: The sampler of the larger model: what the step before chose.
        """
        if not self._passes.begin(buffers.memory):
            return
        if buffers.num_feeds:
            self._take_from(sampler)
        model = self._open_model()
        while True:
            turn = self._turn
            host_set, places, done = self._sets[turn], self._host_places[turn], self._done[turn]
            if done is not None:
                done.wait()
            if not self._passes.next_fed(buffers.memory, host_set.memory.numpy(), places.numpy()):
                return
            one = TorchStep(self, turn, host_set)
            self._work.forward(model, self.graphs, one)
            drafts = host_set.buffers.num_sampled
            if drafts:
                self._work.sample(model, self.graphs, one, Wanted.by(host_set.buffers))
                self._places[:drafts].copy_(places[:drafts], non_blocking=True)
                self._hand_over_to(step.token_ids, drafts)
            self._done[turn] = self._queue.mark()
            if one.capture is not None and self.graphs is not None:
                # Before the next pass is planned: attention is as it was for this one.
                self.graphs.capture(*one.capture)
            self._turn = (turn + 1) % len(self._sets)

    def learn(self, buffers: StepBuffers) -> None:
        """Take the tokens that a step sampled, which the host did not know when it was planned."""
        self._passes.learn(buffers.memory)

    def _take_from(self, sampler: TorchSampler) -> None:
        """Let passes be fed with the tokens that the larger model's steps end with."""
        self._take_tokens(sampler.last_token, self._sampler.last_token, self._vocab_size)

    def _hand_over_to(self, token_ids: torch.Tensor, drafts: int) -> None:
        """Write the drafts of a pass into the step, and keep them for the next pass."""
        self._hand_over(
            self._sampler.last_token,
            self._step.sample_sequence[:drafts],
            self._places[:drafts],
            token_ids,
            self._vocab_size,
        )

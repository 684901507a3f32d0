"""The work of a step on a torch device: its forward pass and its sampling, each queued kernel by
kernel or replayed from a graph.

::

    forward   pad to the graph's size ─ copy ─ plan attention ─ feed, move ─ drafts ─┬─ replay
                                                            kernels, captured? ──────┘
    sample    logits ─ penalties, sampler, log-probabilities ─ verify: replay, or kernels, captured?
"""

from collections.abc import Callable
from functools import partial

import torch

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.device.device_step import DeviceStep
from pyengine.model.torch.device.graphs import MAX_TOKENS, Graphs, bucket, mixed_bucket
from pyengine.model.torch.outputs.sampler import TorchSampler
from pyengine.model.torch.outputs.wanted import Wanted
from pyengine.model.torch.step.in_flight import TorchStep
from pyengine.model.torch.step.model import Drafter, StepModel


class StepWork:
    """Queues the steps of one :class:`DeviceStep` on the current stream. One thread at a time."""

    def __init__(
        self,
        layout: StepLayout,
        step: DeviceStep,
        sampler: TorchSampler,
        draft: Drafter | None,
    ) -> None:
        """Queues steps in ``step``, of ``layout``; ``draft`` fills in the drafts they leave."""
        fields = layout.fields()
        self._layout = layout
        self._step = step
        self._sampler = sampler
        self._draft = draft
        self._max_rows, self._max_logits = fields["sample_rows"][2], fields["logit_row"][2]
        self._max_tokens = fields["token_ids"][2]

    def forward(
        self,
        model: StepModel,
        graphs: Graphs | None,
        step: TorchStep,
    ) -> None:
        """Queue the copy of ``step`` and its forward pass; note what is to be captured of it."""
        buffers, device, backend = step.buffers, self._step, model.backend
        rows, tokens, logits = buffers.num_rows, buffers.num_tokens, buffers.num_logits
        device.host = buffers
        variant = backend.variant(device)
        graph = key = None
        if graphs is not None:
            graphs.begin_step()
            logits = self.logits_rows(model, logits)
            if backend.captures and (size := self._forward_bucket(buffers)):
                key = ("forward", variant, size)
                graph = graphs.find(key)
                if graph is not None or graphs.is_due(key):
                    rows, tokens = min(size, self._max_rows), size
                else:
                    key = None
        self._layout.pad(buffers.memory, rows, tokens, logits)
        pages = buffers.num_pages + rows - buffers.num_rows
        device.take(buffers, step.host_set.memory, min(pages, len(buffers.page_indices)))
        backend.plan(device, variant, rows, tokens, captured=key is not None)
        self._sampler.feed()
        if self._draft is not None:
            self._draft.fill(buffers, device, self._sampler)
        if graph is not None:
            graph.replay()
            return
        model.forward(device, tokens)
        if key is not None:
            step.capture = key, lambda: model.forward(device, tokens)

    def sample(
        self, model: StepModel, graphs: Graphs | None, step: TorchStep, wanted: Wanted
    ) -> None:
        """Queue logits, sampling and verification of ``step``; note what is to be captured."""
        logits, per_call = step.buffers.num_logits, model.rows_per_call
        processing = step.buffers.processing
        if graphs is None or processing is not None or logits > per_call or not logits:
            for first in range(0, logits, per_call):
                rows, again = min(per_call, logits - first), None
                table = model.logits(self._step, rows, first)
                if processing is not None:
                    again = partial(_logits_again, model, self._step, rows, first)
                    with torch.no_grad():
                        processing.process(table, first, rows, again)
                self._sampler.sample(table, wanted, first, again)
            self._sampler.verify()
            return
        rows = self.logits_rows(model, logits)
        key = ("sample", rows, wanted)
        graph = graphs.find(key)
        if graph is not None:
            graph.replay()
            return
        work = self._sampling(model, rows, wanted)
        work()
        if step.capture is None and graphs.is_due(key):
            step.capture = key, work

    def logits_rows(self, model: StepModel, logits: int) -> int:
        """How many logits rows a graph has that samples ``logits`` rows; that number itself where
        they are too many for one.
        """
        most = min(model.rows_per_call, self._max_logits)
        return bucket(logits, most) if 0 < logits <= most else logits

    def _sampling(self, model: StepModel, rows: int, wanted: Wanted) -> Callable[[], None]:
        def work() -> None:
            self._sampler.sample(model.logits(self._step, rows), wanted)
            self._sampler.verify()

        return work

    def _forward_bucket(self, buffers: StepBuffers) -> int | None:
        """Tokens of the forward graph for a step; None for large steps."""
        rows, tokens = buffers.num_rows, buffers.num_tokens
        most = self._max_rows if rows == tokens else self._max_tokens
        if tokens > MAX_TOKENS:
            return None
        size_of = bucket if buffers.num_decode_rows == rows else mixed_bucket
        return size_of(tokens, min(most, self._max_tokens))


def _logits_again(model: StepModel, step: DeviceStep, rows: int, first: int) -> None:
    model.logits(step, rows, first)  # in the same memory

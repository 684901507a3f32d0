"""Graphs of steps with a few prompts.

A launch of FlashInfer's kernels of FlashAttention 2 has tiles of one size. In a graph that goes by
the longest row that tokens and rows leave room for: tiles are of 16, queries times the query heads
of a key head, where there may be as many rows as tokens. A prompt that is cut into these reads its
keys eight times as often as by tiles of 128. So prompts have a launch of few rows, and rows that
decode one of many::

    tokens     d d d d | p p p p p p p | q q q q | + + +     rows that decode, two prompts, padding
    prompts    ─ none ─   ── row 1 ──     row 2     none     zeros where rows decode
    decodes    0 1 2 3 | ─ none ─                            into memory of their own

What rows that decode get is then put in the place of the zeros.
"""

import numpy as np
import torch

from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.flashinfer.memory import Memory, Pinned, Scores
from pyengine.model.torch.attention.flashinfer.page_tables import PageTables, last_page_len
from pyengine.model.torch.attention.flashinfer.wrappers import Cache, Prefill
from pyengine.model.torch.attention.variants import MOST_PROMPTS
from pyengine.model.torch.device.device_step import DeviceStep


class PromptGraph:
    """A few prompts, and rows of one query before them if the graph is for such steps."""

    def __init__(
        self,
        memory: Memory,
        step: DeviceStep,
        rows: int,
        kind: int,
        scores: Scores,
        *,
        decodes: bool,
    ) -> None:
        """For steps of up to ``rows`` rows, with some that decode or without."""
        self._memory, self._scores = memory, scores
        self._decodes: Prefill | None = None
        if decodes:
            self._decodes = Prefill(memory, kind, scores, 0, (step.page_indices, rows))
            self._mask = Pinned(memory, torch.bool)
            self._decoding = torch.zeros(rows, 1, 1, dtype=torch.bool, device=memory.device)
        self._prompts = Prefill(memory, kind, scores, 1, (step.page_indices, MOST_PROMPTS + 2))

    def plan(self, step: DeviceStep, rows: int, tokens: int, shared: int) -> None:
        """See :class:`Launches`."""
        size, table = self._memory.spec.block_size, self._scores.table
        self._prompts.plan(of_prompts(step.host, tokens, size, table), step.page_indices)
        if self._decodes is not None:
            self._decodes.plan(of_decodes(step.host, rows, size, table), step.page_indices)
            decoding = np.arange(rows) < step.host.num_decode_rows
            self._mask.send(decoding, self._decoding.flatten())

    def run(self, queries: torch.Tensor, cache: Cache, out: torch.Tensor) -> None:
        """See :class:`Launches`."""
        self._prompts.run(queries, cache, out)
        if self._decodes is None:
            return
        found = self._memory.beside[: self._decodes.queries]
        self._decodes.run(queries, cache, found)
        zeros = out[: len(found)]
        self._memory.library.put(self._decoding, found, zeros)

    def finish(self) -> None:
        """See :class:`Launches`."""
        self._prompts.finish()
        if self._decodes is not None:
            self._mask.finish()
            self._decodes.finish()


def of_prompts(host: StepBuffers, tokens: int, page_size: int, table: int) -> PageTables:
    """The page tables of a step's prompts, O(prompts): of :data:`MOST_PROMPTS` rows between one of
    the tokens that decode and one of those that pad the step to ``tokens``, both without keys.
    """
    first, end, own = host.num_decode_rows, host.num_rows, host.page_tables[table]
    rows = end - first
    query_start = np.full(MOST_PROMPTS + 3, host.query_start[end], np.int32)
    query_start[0], query_start[-1] = 0, tokens
    query_start[1 : rows + 2] = host.query_start[first : end + 1]
    indptr = np.full(MOST_PROMPTS + 3, own.page_indptr[end], np.int32)
    indptr[0] = own.page_indptr[first]
    indptr[1 : rows + 2] = own.page_indptr[first : end + 1]
    lengths = np.zeros(MOST_PROMPTS + 2, np.int32)
    lengths[1 : rows + 1] = own.kv_length[first:end]
    return PageTables(query_start, indptr, lengths, last_page_len(lengths, page_size))


def of_decodes(host: StepBuffers, rows: int, page_size: int, table: int) -> PageTables:
    """The page tables of a step's rows that decode, O(rows): ``rows`` of one query each, of which
    the others have no keys.
    """
    decodes, own = host.num_decode_rows, host.page_tables[table]
    indptr = np.full(rows + 1, own.page_indptr[decodes], np.int32)
    indptr[: decodes + 1] = own.page_indptr[: decodes + 1]
    lengths = np.zeros(rows, np.int32)
    lengths[:decodes] = own.kv_length[:decodes]
    query_start = np.arange(rows + 1, dtype=np.int32)
    return PageTables(query_start, indptr, lengths, last_page_len(lengths, page_size))

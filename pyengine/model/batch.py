"""The buffers of one step: what the planner writes and the runner reads.

One flat block of host memory holds every field, so that a device takes a step with one copy::

    header | token_ids | positions | slot_mapping | query_start | kv_length | page_indptr | ...

Where each field lies is said by :class:`pyengine._core.StepLayout`; here are the views of it.
"""

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from pyengine._core import StepHeader, StepLayout


class _Number:
    """A number of a step's header, read and written under a name of its own."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, step: "StepBuffers", owner: type["StepBuffers"]) -> int:
        return int(step.header[self._index])

    def __set__(self, step: "StepBuffers", number: int) -> None:
        step.header[self._index] = number


class StepBuffers:
    """One set of step buffers: numpy views of one block of memory.

    One thread at a time: the planner's until ``launch``, then the runner's until ``wait`` returns.

    ``R`` is the most rows (sequences) of a step, ``T`` its most tokens, ``P`` its most pages.
    A *row* is one sequence in this step; it brings one or more consecutive tokens.

    Attributes:
        memory: uint8 [layout.nbytes], the memory itself; ``Planner.plan`` writes here.
        header: int64 [16], the numbers of the step by :class:`pyengine._core.StepHeader`; most of
            them have a name here too.
        token_ids: int32 [T].
        positions: int32 [T], of each token in its sequence.
        slot_mapping: int32 [T], block * block_size + offset: where the token's KV is stored.
        query_start: int32 [R + 1], first token of each row; the last entry is the number of tokens.
        kv_length: int32 [R], tokens of the sequence in the cache after this step.
        page_indptr: int32 [R + 1], where each row's pages begin in ``page_indices``.
        page_indices: int32 [P], blocks in the order of the sequence.
        row_sequence: int32 [R], each row's slot in the sequence table.
        sample_rows: int32 [R], rows whose last token is followed by a sampled one.
        sample_sequence: int32 [R], their slots in the sequence table.
        temperature: float32 [R], by sampled row, like the five that follow; 0 is greedy.
        top_k: int32 [R]; 0 is off.
        top_p: float32 [R]; 1 is off.
        min_p: float32 [R]; 0 is off.
        seed: uint64 [R].
        sample_position: int64 [R], position of the first token that is sampled.
        device_drafts: int32 [R], draft tokens at the row's end that the draft model fills in.
        logit_start: int32 [R + 1], by sampled row: the first of its logits; one, and one more for
            each draft token.
        logit_row: int32 [L], the sampled row of each of the logits.
        logit_token: int32 [L], the token of the step that they follow.
        mask_row: int32 [L], row of ``mask`` with the tokens that may be sampled; -1 is all.
        feed_token: int32 [R], indices into ``token_ids`` of tokens that the host does not know
            yet: the runner puts there what it sampled last for ``feed_sequence``.
        feed_sequence: int32 [R], slots in the sequence table.
        logprobs: int32 [R], by sampled row: of how many most likely tokens the log-probabilities
            are wanted, beside the chosen one's; -1 is none at all.
        penalty_start: int32 [L + 1], the first penalty of each of the logits. Filled after the
        launch, if
            the header has any penalties, like the three that follow.
        penalty_token: int32 [E], the token whose logit is changed: divided by the factor if it is
            positive, else multiplied; then something is added.
        penalty_factor: float32 [E].
        penalty_add: float32 [E].
        mask: uint32 [M, words], bit t % 32 of word t // 32 is token t; filled after the launch.
    """

    header: NDArray[np.int64]
    token_ids: NDArray[np.int32]
    positions: NDArray[np.int32]
    slot_mapping: NDArray[np.int32]
    query_start: NDArray[np.int32]
    kv_length: NDArray[np.int32]
    page_indptr: NDArray[np.int32]
    page_indices: NDArray[np.int32]
    row_sequence: NDArray[np.int32]
    sample_rows: NDArray[np.int32]
    sample_sequence: NDArray[np.int32]
    temperature: NDArray[np.float32]
    top_k: NDArray[np.int32]
    top_p: NDArray[np.float32]
    min_p: NDArray[np.float32]
    seed: NDArray[np.uint64]
    sample_position: NDArray[np.int64]
    device_drafts: NDArray[np.int32]
    logit_start: NDArray[np.int32]
    logit_row: NDArray[np.int32]
    logit_token: NDArray[np.int32]
    mask_row: NDArray[np.int32]
    feed_token: NDArray[np.int32]
    feed_sequence: NDArray[np.int32]
    logprobs: NDArray[np.int32]
    penalty_start: NDArray[np.int32]
    penalty_token: NDArray[np.int32]
    penalty_factor: NDArray[np.float32]
    penalty_add: NDArray[np.float32]
    mask: NDArray[np.uint32]

    num_rows = _Number(StepHeader.NUM_ROWS)
    """Sequences in this step."""
    num_tokens = _Number(StepHeader.NUM_TOKENS)
    """Tokens that this step computes."""
    num_sampled = _Number(StepHeader.NUM_SAMPLED)
    """Rows that this step samples for."""
    num_pages = _Number(StepHeader.NUM_PAGES)
    """Pages of its rows, all together."""
    num_feeds = _Number(StepHeader.NUM_FEEDS)
    """Tokens that only the runner knows; see ``feed_token``."""
    max_query_length = _Number(StepHeader.MAX_QUERY_LENGTH)
    """The most tokens that a row brings."""
    max_kv_length = _Number(StepHeader.MAX_KV_LENGTH)
    """The longest context of a row, what it brings counted in."""
    step_id = _Number(StepHeader.STEP_ID)
    """The planner's number for this step."""
    num_greedy = _Number(StepHeader.NUM_GREEDY)
    """Sampled rows that are greedy."""
    num_logits = _Number(StepHeader.NUM_LOGITS)
    """Tokens that this step samples, those behind wrong drafts counted in."""
    num_masks = _Number(StepHeader.NUM_MASKS)
    """Masks that are to be filled before it samples."""
    max_device_drafts = _Number(StepHeader.MAX_DEVICE_DRAFTS)
    """The most tokens of a row that the draft model fills in."""
    num_decode_rows = _Number(StepHeader.NUM_DECODE_ROWS)
    """The first so many rows decode; those behind them compute prompts."""
    num_penalties = _Number(StepHeader.NUM_EDITS)
    """Penalties of logits. Before they are filled a bound, above 0 if there may be any."""

    def __init__(self, layout: StepLayout, memory: NDArray[np.uint8] | None = None) -> None:
        """Views of ``memory`` (uint8 [layout.nbytes], zeroed), or of fresh memory."""
        if memory is None:
            # Page-aligned, and taken from the system as it is written: masks are many and seldom.
            memory = np.frombuffer(mmap.mmap(-1, layout.nbytes), np.uint8)
        self.memory = memory
        if self.memory.dtype != np.uint8 or self.memory.shape != (layout.nbytes,):
            raise ValueError(f"step buffers take uint8 [{layout.nbytes}]")
        for name, (dtype, offset, count) in layout.fields().items():
            end = offset + count * np.dtype(dtype).itemsize
            setattr(self, name, self.memory[offset:end].view(dtype))
        self.mask = self.mask.reshape(-1, layout.mask_words)

    @property
    def num_logprobs(self) -> int:
        """Of how many likely tokens a row wants log-probabilities, at most; -1 if none does."""
        return int(self.header[StepHeader.MAX_LOGPROBS_AND_ONE]) - 1

    @property
    def late(self) -> bool:
        """Whether masks or penalties are filled after the launch, before it samples."""
        return bool(self.num_masks or self.num_penalties)

    def feed(self, last_token: NDArray[np.int32]) -> None:
        """Fill in the tokens that only the runner knows, from int32 [max_sequences]."""
        count = self.num_feeds
        if count:
            self.token_ids[self.feed_token[:count]] = last_token[self.feed_sequence[:count]]


class BufferRing:
    """The sets of step buffers that take turns: one is planned into while others are in flight."""

    def __init__(self, count: int, make: Callable[[], StepBuffers]) -> None:
        """``count`` sets, each made by ``make``."""
        self._sets: list[StepBuffers] = [make() for _ in range(count)]
        self._busy = [False] * count
        self._next = 0

    def free(self) -> StepBuffers:
        """The set whose turn it is; the same one until it is launched.

        Raises:
            RuntimeError: Every set is in flight: wait for the oldest step first.
        """
        if self._busy[self._next]:
            raise RuntimeError("every set of step buffers is in flight: wait for the oldest step")
        return self._sets[self._next]

    def take(self, buffers: StepBuffers) -> int:
        """Mark ``buffers``, which must be the free set, as in flight; returns its index."""
        index = self._next
        if self.free() is not buffers:
            raise RuntimeError("launch takes the set that buffers() returned last")
        self._busy[index] = True
        self._next = (index + 1) % len(self._sets)
        return index

    def give_back(self, index: int) -> None:
        """The step of set ``index`` is over."""
        self._busy[index] = False

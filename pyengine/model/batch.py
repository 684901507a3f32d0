"""The buffers of one step: what the planner writes and the runner reads, and its results.

One flat block of host memory holds every field, so that a device takes a step with one copy::

    header | token_ids | positions | slot_mapping | ... | mask | sampled_counts | ...

Where each field lies is said by :class:`pyengine._core.StepLayout`; here are the views of it.
"""

import mmap
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import NO_TOKEN as NO_TOKEN
from pyengine._core import StepLayout, step_numbers
from pyengine.logits_processors import StepProcessing
from pyengine.model.step_fields import StepFields
from pyengine.model.step_names import StepNumbers


class _Number:
    """A number of a step's header, read and written by its name."""

    def __init__(self, index: int) -> None:
        self._index = index

    def __get__(self, step: "StepBuffers", owner: type["StepBuffers"]) -> int:
        return int(step.header[self._index])

    def __set__(self, step: "StepBuffers", number: int) -> None:
        step.header[self._index] = number


class StepBuffers(StepFields[NDArray[Any]], StepNumbers):
    """One set of step buffers: numpy views of one block of memory.

    One thread at a time: the planner's until ``launch``, then the runner's until ``wait`` returns.

    The numbers of ``header`` are attributes. ``sampling`` is an array of
    :data:`pyengine.model.step_fields.SAMPLING_ROW`; fields that are tables have two dimensions.

    Attributes:
        memory: uint8 [layout.nbytes], the memory itself; ``Planner.plan`` writes here.
        processing: Changes the step's logits before it samples, if its rows ask for that.
    """

    def __init__(self, layout: StepLayout, memory: NDArray[np.uint8] | None = None) -> None:
        """Views of ``memory`` (uint8 [layout.nbytes], zeroed), or of fresh memory."""
        if memory is None:
            # Page-aligned, and taken from the system as it is written: masks are many and seldom.
            memory = np.frombuffer(mmap.mmap(-1, layout.nbytes), np.uint8)
        self.memory = memory
        if self.memory.dtype != np.uint8 or self.memory.shape != (layout.nbytes,):
            raise ValueError(f"step buffers take uint8 [{layout.nbytes}]")
        self.processing: StepProcessing | None = None
        block = self.memory
        self.make_views(layout, lambda dtype, start, end: block[start:end].view(dtype))

    @property
    def late(self) -> bool:
        """Whether masks, penalties or rows of logits processors come after the launch, before it
        samples.
        """
        return bool(self.num_masked_logits or self.num_penalized_rows or self.num_processed_rows)

    @property
    def tokens(self) -> NDArray[np.int32]:
        """int32 [num_logits], the sampled tokens."""
        return self.sampled_tokens[: self.num_logits]

    @property
    def counts(self) -> NDArray[np.int32]:
        """int32 [num_sampled], how many tokens of each sampling row count."""
        return self.sampled_counts[: self.num_sampled]

    def feed(self, last_token: NDArray[np.int32]) -> None:
        """Fill in the tokens that only the runner knows, from int32 [max_sequences]."""
        count = self.num_feeds
        if count:
            self.token_ids[self.feed_token[:count]] = last_token[self.feed_sequence[:count]]


for _name, _index in step_numbers().items():
    setattr(StepBuffers, _name, _Number(_index))


class BufferRing:
    """The sets of step buffers that take turns: one is planned into while others are in flight."""

    def __init__(self, count: int, make: Callable[[], StepBuffers]) -> None:
        """``count`` sets, each made by ``make``."""
        self._sets: list[StepBuffers] = [make() for _ in range(count)]
        self._busy = [False] * count
        self._next = 0

    @property
    def idle(self) -> bool:
        """Whether no set is in flight."""
        return not any(self._busy)

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

"""How a step is sent from rank 0 to the others: the used bytes of its buffers, in pieces of a ring.

::

    plan      header | fields ..... | page_indices used | ··· | pool, prompt · | late fields ···
    LAUNCH    └──────────── one range ────────────────┘         └ used ┘ └ used ┘
    SAMPLE                                                                       └ used ┘ └ used ┘

Fields that are filled late (masks, penalties) are sent once they are filled, in messages of their
own, after which the ranks sample, as rank 0 does. A message is its kind, an offset and the bytes
from there; a long range takes several messages, of which the last has the kind that starts work.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from pyengine._core import StepLayout
from pyengine.model.batch import StepBuffers

PIECE_BYTES = 1 << 20
RING_BYTES = 8 * PIECE_BYTES
_HEAD = struct.Struct("<qq")

POOL = ("pool_token", "pool_start")
PROMPT = ("prompt_token", "prompt_target")
LATE = ("penalty_start", "penalty_token", "penalty_factor", "penalty_add", "mask")

Range = tuple[int, int]


class Kind(IntEnum):
    """The call that a rank makes after a message's bytes are written."""

    MORE_TO_LAUNCH = 0
    LAUNCH = 1
    MORE_TO_SAMPLE = 2
    SAMPLE = 3


class Ranges:
    """The used byte ranges of step buffers. Any thread."""

    def __init__(self, layout: StepLayout) -> None:
        """For steps of ``layout``, whose page indices, lists of tokens and late fields lie behind
        all others.
        """
        fields = layout.fields()
        self._fields = {
            name: (start, np.dtype(kind).itemsize) for name, (kind, start, _) in fields.items()
        }
        self._mask_words = layout.mask_words
        pages, _ = self._fields["page_indices"]
        behind = {name for name, (start, _) in self._fields.items() if start > pages}
        if stray := behind - {*POOL, *PROMPT, *LATE}:
            raise ValueError(f"{stray} lie behind the page indices")

    def early(self, step: StepBuffers) -> list[Range]:
        """The bytes that are filled when a step is planned: [start, end)."""
        ranges = [(0, self._first("page_indices", step.num_pages)[1])]
        if rows := step.num_pooled_rows:
            counts = zip(POOL, (step.num_pooled_tokens, rows + 1), strict=True)
            ranges += [self._first(name, count) for name, count in counts]
        if logits := step.num_prompt_logits:
            ranges += [self._first(name, logits) for name in PROMPT]
        return ranges

    def late(self, step: StepBuffers) -> list[Range]:
        """The bytes that are filled by the time the step is sampled."""
        # How many penalties there are is known only now.
        ranges = [(0, step.header.nbytes)]
        if penalties := step.num_penalties:
            counts = dict.fromkeys(LATE[1:4], penalties) | {"penalty_start": step.num_logits + 1}
            ranges += [self._first(name, count) for name, count in counts.items()]
        if step.num_masks:
            ranges.append(self._first("mask_row", step.num_logits))
            ranges.append(self._first("mask", step.num_masks * self._mask_words))
        return ranges

    def _first(self, name: str, count: int) -> Range:
        """The first ``count`` items of a field."""
        start, size = self._fields[name]
        return start, start + count * size


def messages(kind: Kind, ranges: list[Range], memory: NDArray[np.uint8]) -> Iterator[bytearray]:
    """``ranges`` of ``memory`` as messages; ``kind`` is LAUNCH or SAMPLE, and comes last."""
    pieces = [
        (at, min(end, at + PIECE_BYTES))
        for start, end in ranges
        for at in range(start, end, PIECE_BYTES)
    ] or [(0, 0)]
    for number, (start, end) in enumerate(pieces, 1):
        last = number == len(pieces)
        message = bytearray(_HEAD.pack(kind if last else kind - 1, start))
        message += memory[start:end].data
        yield message


def kind_of(message: bytes) -> Kind:
    """The call to make after ``message`` is written."""
    return Kind(_HEAD.unpack_from(message)[0])


def write(message: bytes, memory: NDArray[np.uint8]) -> None:
    """Write the message's bytes to their offset in ``memory``."""
    start = _HEAD.unpack_from(message)[1]
    data = np.frombuffer(message, np.uint8, offset=_HEAD.size)
    memory[start : start + len(data)] = data

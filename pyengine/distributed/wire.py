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

Range = tuple[int, int]


class Kind(IntEnum):
    """The call that a rank makes after a message's bytes are written."""

    MORE_TO_LAUNCH = 0
    LAUNCH = 1
    MORE_TO_SAMPLE = 2
    SAMPLE = 3


def planned(layout: StepLayout, step: StepBuffers) -> list[Range]:
    """The bytes that are filled when a step is planned: [start, end)."""
    return layout.planned_ranges(step.memory)


def late(layout: StepLayout, step: StepBuffers) -> list[Range]:
    """The bytes that are filled by the time the step is sampled."""
    # The header has the numbers of masks and penalties, which are known only now.
    return [(0, step.header.nbytes), *layout.late_ranges(step.memory)]


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

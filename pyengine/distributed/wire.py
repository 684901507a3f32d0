"""How a step is sent from rank 0 to the others: the used bytes of its buffers, in pieces of a ring.

::

    plan      header | fields ..... | page_indices used | ··· | pool, prompt · | late fields ···
    LAUNCH    └──────────── one range ────────────────┘         └ used ┘ └ used ┘
    SAMPLE                                                                       └ used ┘ └ used ┘

Fields that are filled late (masks, penalties) are sent once they are filled, in messages of their
own, after which the ranks sample, as rank 0 does. A message is its kind, an offset and the bytes
from there; a long range takes several messages, of which the last has the kind that starts work.
"""

import os
import struct
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from pyengine._core import StepLayout
from pyengine.errors import AdapterError
from pyengine.model.adapters.peft import AdapterFile, read_adapter
from pyengine.model.batch import StepBuffers

PIECE_BYTES = 1 << 20
RING_BYTES = 8 * PIECE_BYTES
DIGEST_BYTES = 32
_HEAD = struct.Struct("<qq")

Range = tuple[int, int]


class Kind(IntEnum):
    """The call that a rank makes after a message's bytes are written."""

    MORE_TO_LAUNCH = 0
    LAUNCH = 1
    MORE_TO_SAMPLE = 2
    SAMPLE = 3
    ADAPTER = 4


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


def adapter_message(slot: int, adapter: AdapterFile | None) -> bytes:
    """A message that puts an adapter, or none, into a slot: its digest, and where it is read."""
    body = b"" if adapter is None else adapter.digest + os.fsencode(adapter.folder)
    return _HEAD.pack(Kind.ADAPTER, slot) + body


def read_adapter_message(message: bytes) -> tuple[int, AdapterFile | None]:
    """The slot and the adapter of such a message.

    Raises:
        AdapterError: The folder cannot be read, or has another adapter by now.
    """
    _, slot = _HEAD.unpack_from(message)
    body = message[_HEAD.size :]
    if not body:
        return slot, None
    adapter = read_adapter(Path(os.fsdecode(body[DIGEST_BYTES:])))
    if adapter.digest != body[:DIGEST_BYTES]:
        raise AdapterError(f"{adapter.folder} has changed while it was loaded")
    return slot, adapter


def kind_of(message: bytes) -> Kind:
    """The call to make after ``message`` is written."""
    return Kind(_HEAD.unpack_from(message)[0])


def write(message: bytes, memory: NDArray[np.uint8]) -> None:
    """Write the message's bytes to their offset in ``memory``."""
    start = _HEAD.unpack_from(message)[1]
    data = np.frombuffer(message, np.uint8, offset=_HEAD.size)
    memory[start : start + len(data)] = data

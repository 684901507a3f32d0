"""Spans as numpy records, for those who look at single ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import Lane, Recorder, Stage

SPAN = np.dtype(
    [
        ("start", np.uint64),
        ("end", np.uint64),
        ("step", np.uint64),
        ("stage", np.uint8),
        ("lane", np.uint8),
        ("padding", np.uint8, 6),
    ]
)
"""A span: ``time.monotonic_ns()`` at its ends, its step, and the numbers of stage and lane."""

Spans = NDArray[Any]
"""Array of :data:`SPAN`."""


def decode_spans(recorder: Recorder, start: int = 0) -> tuple[Spans, int]:
    """What ``recorder`` holds from span number ``start`` on, and the number to go on from."""
    packed, next_span = recorder.read(start)
    return np.frombuffer(packed, SPAN), next_span


def select(spans: Spans, lane: Lane | None = None, stage: Stage | None = None) -> Spans:
    """Those of one lane or stage."""
    chosen = np.ones(len(spans), bool)
    if lane is not None:
        chosen &= spans["lane"] == int(lane)
    if stage is not None:
        chosen &= spans["stage"] == int(stage)
    return spans[chosen]

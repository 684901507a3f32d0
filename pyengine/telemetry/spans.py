"""Spans as numpy records, to look at single ones."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from pyengine._core import Stage, Track

SPAN = np.dtype(
    [
        ("start", np.uint64),
        ("end", np.uint64),
        ("step", np.uint64),
        ("stage", np.uint8),
        ("track", np.uint8),
        ("padding", np.uint8, 6),
    ]
)
"""A span: ``time.monotonic_ns()`` at its ends, its step, and the numbers of stage and track."""

Spans = NDArray[Any]
"""Array of :data:`SPAN`."""


def select(spans: Spans, track: Track | None = None, stage: Stage | None = None) -> Spans:
    """The spans of one track or stage."""
    chosen = np.ones(len(spans), bool)
    if track is not None:
        chosen &= spans["track"] == int(track)
    if stage is not None:
        chosen &= spans["stage"] == int(stage)
    return spans[chosen]

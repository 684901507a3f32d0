"""What tokens waited for between their commit and their reader, beside the device.

::

    tokens     ├──────── deliver ────────┤           at least one token waits
    loop            ├──── loop_lag ────┤             a frontend's loop is late
    frontend      ├───── template ────┤              and this is why
"""

from typing import Self

import msgspec
import numpy as np
from numpy.typing import NDArray

from pyengine._core import Stage, Track
from pyengine.request.loop_lag import PERIOD_NS
from pyengine.telemetry.spans import Spans, select

READERS = "their readers"
"""The cause of a wait for a reader that was told of the tokens and has not come back for them."""

HOPS = "wake-ups"
"""The cause of what is left: messages between threads that have to wake up."""

# These run beside the loop, and keep it only if they keep the GIL.
_BESIDE = (Stage.TEMPLATE, Stage.TOKENIZE)
_CAUSES = (Stage.GIL_WAIT, Stage.LOOP_HELD)


class TokenWaits(msgspec.Struct, frozen=True):
    """How long tokens waited from their commit until their reader had taken them, in ms.

    Attributes:
        causes: Milliseconds in which a token waited, by the stage that kept it or the reason why
            the loop was late; the largest first.
    """

    p50: float
    p99: float
    longest: float
    causes: dict[str, float]

    @classmethod
    def of(cls, spans: Spans) -> Self | None:
        """The waits among ``spans``; None where no token came."""
        waits = select(spans, Track.REQUEST, Stage.DELIVER)
        if len(waits) == 0:
            return None
        times = (waits["end"] - waits["start"]) * 1e-6
        p50, p99 = np.percentile(times, [50, 99]).tolist()
        return cls(p50, p99, float(times.max()), _causes(spans, waits))


def _causes(spans: Spans, waits: Spans) -> dict[str, float]:
    own = np.isin(spans["track"], [int(Track.FRONTEND), int(Track.DETOKENIZER), int(Track.LOOP)])
    spans = spans[own]
    edges = np.unique(np.concatenate([waits[end] for end in ("start", "end")]
                                     + [spans[end] for end in ("start", "end")]))  # fmt: skip
    begins, lengths = edges[:-1], np.diff(edges) * 1e-6
    left = _inside(waits, begins)
    found: dict[str, float] = {}
    # Of a wait for a core only the length is known, not when in the tick before.
    core = select(spans, Track.LOOP, Stage.CORE_WAIT)
    found[Stage.CORE_WAIT.label] = float((core["end"] - core["start"]).sum()) * 1e-6
    without = left & _inside(core, begins)
    left &= ~without
    excess = found[Stage.CORE_WAIT.label] - float(lengths[without].sum())
    work = spans[spans["track"] != int(Track.LOOP)]
    told = _inside(_read(waits, work), begins)
    loop = ~told | _inside(select(spans, Track.LOOP, Stage.LOOP_LAG), begins)
    present = [stage for stage in Stage.all() if len(select(work, None, stage))]
    for stage in (*sorted(present, key=_BESIDE.__contains__), *_CAUSES):
        kept = select(spans, None, stage)
        there = left & _inside(_since_last_read(kept, work) if stage in _CAUSES else kept, begins)
        if stage in _BESIDE:
            there &= loop
        found[stage.label] = float(lengths[there].sum())
        left &= ~there
    found[READERS] = max(float(lengths[left & told].sum()) - excess, 0.0)
    left &= ~told
    found[HOPS] = float(lengths[left].sum())
    return dict(sorted(found.items(), key=lambda cause: -cause[1]))


def _read(waits: Spans, work: Spans) -> Spans:
    """The part of each wait behind the frontend's reading of the message with the tokens."""
    handed = np.sort(select(work, Track.FRONTEND, Stage.MESSAGE)["end"])
    behind = waits.copy()
    if len(handed):
        at = np.searchsorted(handed, waits["start"], side="right")
        behind["start"] = np.minimum(handed[np.minimum(at, len(handed) - 1)], waits["end"])
    return behind


def _since_last_read(kept: Spans, work: Spans) -> Spans:
    """Times in which a loop was late, from its last work on: its timer was due only later."""
    ends = np.sort(select(work, Track.FRONTEND, Stage.MESSAGE)["end"])
    longer = kept.copy()
    if len(ends):
        at = np.searchsorted(ends, kept["start"], side="right")
        last = np.minimum(ends[np.maximum(at, 1) - 1], kept["start"])
        longer["start"] = np.maximum(last, kept["start"] - np.uint64(PERIOD_NS))
    return longer


def _inside(spans: Spans, moments: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """Whether each moment, which none of their edges follows before the next, is in a span."""
    begun = np.searchsorted(np.sort(spans["start"]), moments, side="right")
    ended = np.searchsorted(np.sort(spans["end"]), moments, side="right")
    inside: NDArray[np.bool_] = begun > ended
    return inside

"""Spans as a trace that ui.perfetto.dev (and chrome://tracing) opens: Chrome's trace event JSON.

::

    pyengine   device        ├──── step 7 ────┤├──── step 8 ────┤
               scheduler     ├commit┤├admit┤...      "exposed" where the device had nothing to do
               detokenizer, frontend
    requests   a lane for each: ├queue_wait┤├── prefill ──┤├──── decode ────┤
                                                   └─► the step that began its first token
    counters   running, waiting, pages held, tokens a second, ...
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import msgspec
import numpy as np

from pyengine._core import Stage, Track
from pyengine.profiling.observe import Sample, covered
from pyengine.telemetry.spans import Spans, select

Event = dict[str, Any]

_REQUESTS = 2
"""The number of the process in whose lanes requests are drawn; the engine's is 1."""


def trace(spans: Spans, samples: Sequence[Sample] = ()) -> bytes:
    """The JSON of ``spans`` and of what was counted meanwhile."""
    events = list(_names())
    if len(spans):
        origin = int(spans["start"].min())
        events += _work(spans, origin)
        events += _lanes(spans, origin)
        events += _counters(samples, origin)
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})


def _names() -> Iterator[Event]:
    for number, name in ((1, "pyengine"), (_REQUESTS, "requests")):
        yield {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
    for track in Track.all():
        if track != Track.REQUEST:
            thread = {"pid": 1, "tid": int(track) + 1}
            yield {"ph": "M", "name": "thread_name", "args": {"name": track.label}, **thread}
            # The device on top, the others in the order of a request's way back.
            order = -1 if track == Track.DEVICE else int(track)
            yield {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": order}, **thread}


def _work(spans: Spans, origin: int) -> Iterator[Event]:
    """The slices of threads and of the device."""
    work = np.sort(spans[spans["track"] != int(Track.REQUEST)], order="start")
    starts, ends = work["start"].astype(np.int64), work["end"].astype(np.int64)
    busy = np.sort(select(spans, Track.DEVICE), order="start")
    exposed = ends - starts - covered(busy, starts, ends)
    stages = Stage.all()
    for span, start, end, alone in zip(
        work, starts.tolist(), ends.tolist(), exposed.tolist(), strict=True
    ):
        event = {
            "name": stages[span["stage"]].label,
            "ph": "X",
            "pid": 1,
            "tid": int(span["track"]) + 1,
            "ts": (start - origin) / 1000,
            "dur": (end - start) / 1000,
            "args": {"step": int(span["step"])},
        }
        if alone > 0 and span["stage"] != int(Stage.IDLE):
            event["args"]["exposed_us"] = alone / 1000
            event["cat"] = "exposed"
        yield event


def _lanes(spans: Spans, origin: int) -> Iterator[Event]:
    """The phases of each request, and an arrow to the step in flight when its first token came."""
    stages = Stage.all()
    steps = np.sort(select(spans, Track.DEVICE, Stage.DEVICE), order="start")
    phases = (Stage.QUEUE_WAIT, Stage.PREFILL, Stage.DECODE, Stage.DELIVER)
    requests = select(spans, Track.REQUEST)
    for span in requests[np.isin(requests["stage"], [int(stage) for stage in phases])]:
        start, end, number = int(span["start"]), int(span["end"]), int(span["step"])
        frontend, request = number >> 48, number & (1 << 48) - 1
        event = {
            "name": stages[span["stage"]].label,
            "cat": "request",
            "id": f"{frontend}.{request}",
            "pid": _REQUESTS,
            "tid": 1,
        }
        yield event | {"ph": "b", "ts": (start - origin) / 1000}
        yield event | {"ph": "e", "ts": (end - origin) / 1000}
        # The last step that ended before the first token was read has computed it.
        at = int(np.searchsorted(steps["end"], end, side="right")) - 1
        if span["stage"] == int(Stage.PREFILL) and at >= 0 and steps["end"][at] > start:
            flow = {"name": "first token", "cat": "first token", "id": number}
            computed = (int(steps["start"][at]) - origin) / 1000
            yield flow | {"ph": "s", "pid": 1, "tid": int(Track.DEVICE) + 1, "ts": computed}
            read = {"pid": _REQUESTS, "tid": 1, "ts": (end - origin) / 1000}
            yield flow | {"ph": "f", "bp": "e"} | read


def _counters(samples: Sequence[Sample], origin: int) -> Iterator[Event]:
    """What was counted, and what grew, from one sample to the next."""
    for before, sample in pairwise(samples):
        seconds = (sample.at_ns - before.at_ns) * 1e-9
        steps = max(sample.grown("steps", before), 1)
        tokens = sample.grown("completion_tokens", before)
        values = {
            "running": sample.stats["running"],
            "waiting": sample.stats["waiting"],
            "pages held": sample.stats["held"],
            "tokens/s": tokens / seconds,
            "tokens a step": tokens / steps,
            "drafts accepted/s": (sample.accepted_drafts - before.accepted_drafts) / seconds,
        }
        for name, value in values.items():
            at = (sample.at_ns - origin) / 1000
            yield {"ph": "C", "name": name, "pid": 1, "ts": at, "args": {name: value}}

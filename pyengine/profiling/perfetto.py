"""Spans as a trace that ui.perfetto.dev (and chrome://tracing) opens: Chrome's trace event JSON."""

from typing import Any

import msgspec

from pyengine._core import Stage, Track
from pyengine.telemetry.spans import Spans


def trace(spans: Spans) -> bytes:
    """The JSON of ``spans``: a thread for each track; queue waits as asynchronous events."""
    tracks, stages = Track.all(), Stage.all()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pyengine"}}
    ]
    for track in tracks:
        thread = {"pid": 1, "tid": int(track) + 1}
        events += [
            {"ph": "M", "name": "thread_name", "args": {"name": track.label}, **thread},
            # The device on top, the others in the order of a request's way back.
            {"ph": "M", "name": "thread_sort_index",
             "args": {"sort_index": -1 if track == Track.DEVICE else int(track)}, **thread},
        ]  # fmt: skip
    origin = int(spans["start"].min()) if len(spans) else 0
    request = int(Track.REQUEST)
    for span in spans:
        start = (int(span["start"]) - origin) / 1000
        length = (int(span["end"]) - int(span["start"])) / 1000
        step, number = int(span["step"]), int(span["track"])
        event = {"name": stages[span["stage"]].label, "pid": 1, "tid": number + 1, "ts": start}
        if number == request:  # they overlap, which the slices of a thread must not
            event |= {"cat": "request", "id": step}
            events += [event | {"ph": "b"}, event | {"ph": "e", "ts": start + length}]
        else:
            events.append(event | {"ph": "X", "dur": length, "args": {"step": step}})
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})

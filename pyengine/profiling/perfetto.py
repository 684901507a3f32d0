"""Spans as a trace that ui.perfetto.dev (and chrome://tracing) opens: Chrome's trace event JSON."""

from typing import Any

import msgspec

from pyengine._core import Lane, Stage
from pyengine.telemetry.spans import Spans


def trace(spans: Spans) -> bytes:
    """The JSON of ``spans``: one track a lane; queue waits as asynchronous events of their own."""
    lanes, stages = Lane.all(), Stage.all()
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "pyengine"}}
    ]
    for lane in lanes:
        track = {"pid": 1, "tid": int(lane) + 1}
        events += [
            {"ph": "M", "name": "thread_name", "args": {"name": lane.label}, **track},
            # The device on top, the others in the order of a request's way back.
            {"ph": "M", "name": "thread_sort_index",
             "args": {"sort_index": -1 if lane == Lane.DEVICE else int(lane)}, **track},
        ]  # fmt: skip
    origin = int(spans["start"].min()) if len(spans) else 0
    request = int(Lane.REQUEST)
    for span in spans:
        start = (int(span["start"]) - origin) / 1000
        length = (int(span["end"]) - int(span["start"])) / 1000
        step, number = int(span["step"]), int(span["lane"])
        event = {"name": stages[span["stage"]].label, "pid": 1, "tid": number + 1, "ts": start}
        if number == request:  # they overlap, which a track of slices must not
            event |= {"cat": "request", "id": step}
            events += [event | {"ph": "b"}, event | {"ph": "e", "ts": start + length}]
        else:
            events.append(event | {"ph": "X", "dur": length, "args": {"step": step}})
    return msgspec.json.encode({"displayTimeUnit": "ms", "traceEvents": events})

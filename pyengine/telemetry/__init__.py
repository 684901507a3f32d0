"""Spans, and the accounting of every microsecond.

::

    planner, detokenizer (Rust)  ┐
    scheduler.py, frontend.py    ├─ spans ─► Recorder ─► Accountant ─► Totals ─► /metrics
    http/ (every worker)         ┘   (one ring in shared memory)             profiling/

``await engine.telemetry()`` gives a :class:`Totals`: cumulative numbers, made for counters. Its
``stages`` hold count, exposed and overlapped nanoseconds for each (track, stage); ``wall_ns``,
``busy_ns`` and ``idle_ns`` the time line; ``step_histogram`` the step times. The difference of two
(``later.since(earlier)``) is a window, with its ``exposed_cpu_ratio``.

Stages and tracks are named once, in ``rust/telemetry/src/stage.rs``. Switching off:
``engine.recorder.enabled = False``, at any time, for all processes of the engine.
"""

from pyengine.telemetry.histogram import HistogramTotal
from pyengine.telemetry.totals import STEP_BOUNDS_S, StageTotal, Totals

__all__ = ["STEP_BOUNDS_S", "HistogramTotal", "StageTotal", "Totals"]

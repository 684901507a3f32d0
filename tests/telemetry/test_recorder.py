"""The recorder from Python: threads, processes, kill -9; and that one name is one name."""

import os
import signal
import subprocess
import sys
import threading
from typing import Any

import numpy as np
import pytest

from pyengine._core import Mailbox, Recorder, Stage, Timeline, Track
from pyengine.telemetry.spans import SPAN, Spans

WRITER = """
import sys
from pyengine._core import Track, Recorder, Stage
recorder = Recorder.attach(int(sys.argv[1]))
timeline = recorder.timeline(Track.FRONTEND)
number = 0
while True:
    number += 1
    timeline.record(Track.FRONTEND, Stage.MESSAGE, number * 3, number * 3 + number % 100, number)
    if number == 2000:
        print("going", flush=True)
"""


def decode_spans(recorder: Recorder, start: int = 0) -> tuple[Spans, int]:
    """Returns the spans from number ``start`` on, and the number of the span after them."""
    packed, next_span = recorder.read(start)
    return np.frombuffer(packed, SPAN), next_span


def spans_of(recorder: Recorder, start: int = 0) -> list[tuple[int, int, int]]:
    """(start, end, step) of what is there."""
    spans, _ = decode_spans(recorder, start)
    return [(int(s["start"]), int(s["end"]), int(s["step"])) for s in spans]


def test_spans_spans_and_records_come_back() -> None:
    recorder = Recorder(64)
    timeline = recorder.timeline(Track.DETOKENIZER)
    begun = timeline.begin()
    timeline.end_span(Stage.DETOKENIZE)
    timeline.end_span(Stage.MESSAGE)
    ended = timeline.span(Stage.SSE_ENCODE, begun)
    timeline.record(Track.DEVICE, Stage.DEVICE, 5, 9, 77)
    spans, next_span = decode_spans(recorder)
    assert [Stage.all()[number].label for number in spans["stage"]] == [
        "detokenize", "message", "sse_encode", "device",
    ]  # fmt: skip
    assert spans["start"][0] == begun
    assert spans["end"][0] == spans["start"][1]
    assert (spans["start"][2], spans["end"][2]) == (begun, ended)
    assert tuple(spans[3])[:3] == (5, 9, 77)
    assert next_span == recorder.recorded == 4
    assert len(decode_spans(recorder, next_span)[0]) == 0


def test_off_is_off_for_everyone() -> None:
    recorder = Recorder(64)
    peer = Recorder.attach(recorder.descriptor())
    timeline = peer.timeline(Track.FRONTEND)
    recorder.enabled = False
    assert not peer.enabled
    assert timeline.begin() == 0
    timeline.end_span(Stage.MESSAGE)
    assert recorder.recorded == 0
    peer.enabled = True
    timeline.begin()
    timeline.end_span(Stage.MESSAGE)
    assert recorder.recorded == 1


def test_many_threads_lose_nothing_while_there_is_room() -> None:
    recorder = Recorder(1 << 14)

    def write(writer: int) -> None:
        timeline = recorder.timeline(Track.FRONTEND)
        for number in range(2000):
            timeline.record(Track.FRONTEND, Stage.MESSAGE, writer, writer + number, number)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted = sorted((w, w + n, n) for w in range(6) for n in range(2000))
    assert sorted(spans_of(recorder)) == wanted


def test_killed_writers_harm_nothing() -> None:
    recorder = Recorder(256)
    descriptor = recorder.descriptor()
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(descriptor)],
            pass_fds=[descriptor],
            stdout=subprocess.PIPE,
        )
        for _ in range(3)
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"going\n"
    for writer in writers:
        os.kill(writer.pid, signal.SIGKILL)
        writer.communicate()
    before = recorder.recorded
    timeline = recorder.timeline(Track.FRONTEND)
    for number in range(256):
        timeline.record(Track.FRONTEND, Stage.MESSAGE, number * 3, number * 3 + 1, number)
    mine = spans_of(recorder, before)
    # At most one slot a writer is lost, and no span is torn.
    assert 253 <= len(mine) <= 256
    assert all(end == start + 1 and start == step * 3 for start, end, step in mine)


def test_memory_that_is_no_recorder_is_refused() -> None:
    mailbox = Mailbox()
    with pytest.raises(ValueError, match="recorder"):
        Recorder.attach(mailbox.descriptors()[0])
    with pytest.raises(OSError, match="descriptor"):
        Recorder.attach(10**6)
    for capacity in (0, 2**30):
        with pytest.raises(ValueError, match="capacity"):
            Recorder(capacity)


def test_names_are_one() -> None:
    kinds: list[tuple[Any, tuple[Stage | Track, ...]]] = [
        (Stage, Stage.all()),
        (Track, Track.all()),
    ]
    for kind, items in kinds:
        for number, item in enumerate(items):
            assert int(item) == number
            assert getattr(kind, item.label.upper()) == item
    assert 0 < Recorder.cost_ns() < 1e6


def test_a_timeline_cannot_be_made_of_nothing() -> None:
    with pytest.raises(TypeError):
        Timeline()

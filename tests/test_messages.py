"""The two spellings of every message, Python's and Rust's, are one."""

import msgspec
import pytest

from pyengine.messages import (
    Delta,
    Report,
    ReportRequest,
    RequestKey,
    decode,
    encode_abort,
    encode_report,
    encode_report_request,
)
from pyengine.telemetry import HistogramTotal, StageTotal, Totals


def test_message_that_python_reads_comes_back_unchanged() -> None:
    stages = [StageTotal("scheduler", "launch", 3, 1, 2)]
    totals = Totals(9, 8, 3, 7, [0, 3], 12, 0, 35.5, stages)
    times = HistogramTotal([10, 20], [1, 0, 2], 70)
    report = Report(7, {"free": 3}, {"duration_ns": times}, totals)
    assert decode(encode_report(report)) == report
    request = ReportRequest(1, 7)
    assert decode(encode_report_request(request)) == request
    delta = Delta(7, "é", (1, 70_000), "stop", None, 2, 3, 0, 2, 9)
    assert decode(msgspec.msgpack.encode(("deltas", [delta]))) == [delta]


@pytest.mark.parametrize(
    "message", [b"", b"\x92", encode_abort(RequestKey(0, 1)), msgspec.msgpack.encode(("deltas", 3))]
)
def test_message_that_python_does_not_read_is_refused(message: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(message)

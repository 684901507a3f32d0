"""The whole GPU bench in its tiny form on the CPU: it runs, and its JSON has all the fields."""

import json
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from benches.gpu.part import Bench, Part, run_part
from benches.gpu.run import NAMES, Report, isolated, main, part, run
from benches.gpu.table import line, table
from benches.gpu.tiny import tiny_model
from tests.torch_devices import start, use_torch

# A busy machine takes its time to import transformers.
pytestmark = pytest.mark.timeout(300)

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def report() -> Report:
    with tiny_model() as folder:
        return run(NAMES, "cpu", True, folder, apart=False)


@pytest.mark.parametrize("name", NAMES)
def test_a_part_is_complete_and_its_rows_have_all_fields(report: Report, name: str) -> None:
    written = json.loads(json.dumps(report.as_json()))
    result = written["parts"][name]
    assert (result["status"], result["why"]) == ("complete", None)
    assert result["rows"]
    for row in result["rows"]:
        assert tuple(row) == part(name).columns
        # What is missing says why; only what a CPU has not is missing.
        if row.get("note") is not None:
            assert row["note"] in ("only on a GPU", "no graphs on this device")


def test_the_report_says_where_and_how(report: Report) -> None:
    written = report.as_json()
    assert written["machine"]["device"] == "cpu"
    assert written["setup"]["tiny"] is True
    assert min(written["ceilings"].values()) > 0
    assert written["seconds"] > 0
    # These are for other shapes.
    assert [target["met"] for target in written["targets"]] == [None, None, None]


def test_every_figure_has_its_floor(report: Report) -> None:
    for name in ("decode", "ttft", "kernels", "speculation"):
        for row in report.parts[name].rows:
            times = [value for key, value in row.items() if key.endswith("_s") and value]
            assert min(times) > 0
            assert row["over_floor"] > 0


def test_the_text_shows_every_part(report: Report) -> None:
    text = report.as_text()
    for name in NAMES:
        assert f"{name}: {part(name).question} (complete, " in text


def test_the_shares_fit_eight_minutes() -> None:
    assert sum(part(name).share_s for name in NAMES) <= 470


@dataclass(frozen=True)
class Row:
    number: int
    note: str | None = None


def counting(count: int) -> Part:
    def run(bench: Bench) -> Generator[Row]:
        for number in range(count):
            yield Row(number)
            if number == 2:
                raise ValueError("two is too many")

    return Part("counting", "How many?", 1.0, Row, run)


@pytest.mark.parametrize(
    ("count", "left_s", "status", "rows"),
    [(2, 60, "complete", 2), (2, 0, "cut", 1), (1, 0, "complete", 1), (5, 60, "failed", 3)],
)
def test_rows_measured_before_a_failure_are_kept(
    count: int, left_s: float, status: str, rows: int
) -> None:
    got: list[dict[str, Any]] = []
    bench = Bench(CPU, True, "none", time.monotonic() + left_s)
    ended, why = run_part(counting(count), bench, got.append)
    assert ended == status
    assert (why is None) == (status == "complete")
    assert got == [{"number": number, "note": None} for number in range(rows)]


def test_the_command_writes_what_it_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "figures.json"
    monkeypatch.setattr(
        sys,
        "argv",
        ["gpu", "--device", "cpu", "--tiny", "--here", "--only", "ceilings", "--json", str(file)],
    )
    main()
    assert json.loads(file.read_text())["parts"]["ceilings"]["status"] == "complete"
    said = capsys.readouterr()
    assert "ceilings: What can the device do at best? (complete, " in said.out
    assert "ceilings: copy, 1 MiB, time" in said.err


def test_hours_on_a_cpu_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["gpu", "--device", "cpu"])
    with pytest.raises(SystemExit):
        main()


def task(name: str, seconds: float) -> dict[str, Any]:
    return {
        "name": name,
        "device": "cpu",
        "tiny": True,
        "model": "none",
        "attention": "auto",
        "deadline": time.monotonic() + seconds,
        "ceilings": None,
    }


@pytest.mark.slow
def test_a_part_in_its_own_process() -> None:
    events: list[dict[str, Any]] = []
    isolated(task("ceilings", 60.0), events.append)
    assert events[0]["about"]["device"] == "cpu"
    assert {event["row"]["what"] for event in events if "row" in event} == {
        "copy",
        "read",
        "matmul",
        "launch",
    }
    assert events[-1] == {"status": "complete", "why": None}


SAYS_AND_HANGS = """
import os, sys, time
os.write(int(sys.argv[-1]), b'{"say": "hello"}\\n')
time.sleep(1000)
"""


def test_a_part_that_overstays_is_ended() -> None:
    events: list[dict[str, Any]] = []
    isolated(task("ceilings", 1.0), events.append, (sys.executable, "-c", SAYS_AND_HANGS))
    assert events[-1]["status"] == "cut"


def test_a_part_whose_process_dies_has_failed() -> None:
    events: list[dict[str, Any]] = []
    isolated(task("ceilings", 60.0), events.append, (sys.executable, "-c", "raise SystemExit(3)"))
    assert events == [{"status": "failed", "why": "its process ended with 3; see above"}]


def test_a_table_has_units_and_no_empty_columns() -> None:
    rows: list[dict[str, Any]] = [
        {"what": "a", "time_s": 0.0021, "size_bytes": 3 << 20, "share_ratio": 0.031, "note": None},
        {"what": "bb", "time_s": None, "size_bytes": 12, "share_ratio": None, "note": None},
    ]
    assert table(tuple(rows[0]), rows).splitlines() == [
        "what    time   size  share",
        "a     2.1 ms  3 MiB  3.10%",
        "bb         -   12 B      -",
    ]
    assert line(rows[0]) == "a, time 2.1 ms, size 3 MiB, share 3.10%"


@pytest.fixture
def on_torch(monkeypatch: pytest.MonkeyPatch, report: Report) -> Iterator[Bench]:
    """The bench on the runner of GPUs, with graphs and steps that overlap, on the CPU."""
    for name in ("graphs", "speculation"):
        monkeypatch.setattr(f"benches.gpu.{name}.load_runner", lambda c: start(c, "overlapping"))
    use_torch(monkeypatch, "overlapping")
    with tiny_model() as folder:
        yield Bench(CPU, True, folder, time.monotonic() + 100, report.ceilings)


@pytest.mark.parametrize("name", ["decode", "ttft", "speculation"])
def test_a_part_on_the_runner_of_gpus(on_torch: Bench, name: str) -> None:
    rows: list[dict[str, Any]] = []
    assert run_part(part(name), on_torch, rows.append) == ("complete", None)
    assert rows
    assert all(row["note"] is None for row in rows)


def test_captures_are_seen(on_torch: Bench) -> None:
    rows: list[dict[str, Any]] = []
    assert run_part(part("graphs"), on_torch, rows.append) == ("complete", None)
    # A forward pass and a sampler for each bucket, as large as the recorder says.
    assert [(row["bucket"], row["graphs"], row["graph_bytes"]) for row in rows] == [
        (1, 2, 2 << 20),
        (2, 2, 2 << 20),
    ]
    for row in rows:
        assert row["capture_s"] >= row["longest_s"] > 0
        assert row["replay_s"] > 0
        assert row["note"] is None

"""Runs the parts one after the other, each in a process of its own with a share of the time.

::

    this process: no device           a part's process
    ┌───────────────────────┐ task   ┌──────────────────────────────┐
    │ ceilings first        │ ─────► │ yields rows until it is done,│
    │ progress on stderr    │ ◄───── │ or its time is over          │
    │ tables, JSON          │ events └──────────────────────────────┘
    └───────────────────────┘   rows, one a line; killed when it overstays

A part that fails, or breaks the device for its process, costs the others nothing, and its memory is
free again. What a part leaves of its time goes to those behind it.
"""

import argparse
import contextlib
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from io import RawIOBase
from pathlib import Path
from typing import Any

import torch

from benches.gpu.floors import Ceilings
from benches.gpu.machine import facts
from benches.gpu.part import Bench, Part, Result, run_part
from benches.gpu.table import line, table
from benches.gpu.targets import as_row, findings
from benches.gpu.tiny import tiny_model

Event = dict[str, Any]
Tell = Callable[[Event], None]

NAMES = (
    "ceilings", "startup", "kernels", "launches", "decode", "overhead", "ttft", "graphs",
    "speculation", "baselines",
)  # fmt: skip
MODEL = "llama-3-8b"
PROGRAM = (sys.executable, "-m", "benches.gpu")
TINY_SHARE_S = 30.0
# Seconds between asking a part's process to end and killing it.
GRACE_S = 5.0


def part(name: str) -> Part:
    """The part in the file of that name."""
    found = importlib.import_module(f"benches.gpu.{name}").PART
    assert isinstance(found, Part)
    return found


class Report:
    """All results, and the progress of getting them."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self.setup = setup
        self.start = time.monotonic()
        self.machine: dict[str, Any] = {}
        self.ceilings: Ceilings | None = None
        self.parts: dict[str, Result] = {}

    def say(self, name: str, text: str) -> None:
        """A line of progress on standard error, with the seconds so far."""
        print(
            f"[{time.monotonic() - self.start:5.0f} s] {name}: {text}", file=sys.stderr, flush=True
        )

    def add_row(self, name: str, row: dict[str, Any]) -> None:
        """A row of the part ``name``, as it comes."""
        self.parts[name].rows.append(row)
        self.say(name, line(row))

    def as_json(self) -> dict[str, Any]:
        """The content of the ``--json`` file."""
        return {
            "version": 1,
            "setup": self.setup,
            "machine": self.machine,
            "ceilings": None if self.ceilings is None else asdict(self.ceilings),
            "parts": {name: asdict(result) for name, result in self.parts.items()},
            "targets": self.targets(),
            "seconds": time.monotonic() - self.start,
        }

    def targets(self) -> list[dict[str, Any]]:
        """The targets, and whether the figures reach them."""
        rows = {name: result.rows for name, result in self.parts.items()}
        return [as_row(finding) for finding in findings(rows)]

    def as_text(self) -> str:
        """The tables."""
        texts = [", ".join(f"{name} {value}" for name, value in self.machine.items() if value)]
        for name, result in self.parts.items():
            state = result.status if result.why is None else f"{result.status}: {result.why}"
            texts.append(f"{name}: {result.question} ({state}, {result.seconds:.0f} s)")
            texts[-1] += "\n\n" + table(part(name).columns, result.rows) if result.rows else ""
        targets = self.targets()
        if any(target["measured"] is not None for target in targets):
            texts.append("targets\n\n" + table(tuple(targets[0]), targets))
        texts.append(f"{time.monotonic() - self.start:.0f} seconds in all")
        return "\n\n".join(texts)


def run(
    names: Sequence[str],
    device: str,
    tiny: bool,
    model: str,
    *,
    attention: str = "auto",
    apart: bool = True,
    done: Callable[[Report], None] = lambda report: None,
) -> Report:
    """Run the parts of those names in their order; ``apart`` in a process each.

    ``done`` is called after each part, so that a run ended before the last part has the others.
    """
    given = {"device": device, "tiny": tiny, "model": model, "attention": attention}
    now = datetime.now(UTC).isoformat(timespec="seconds")
    report = Report({"begun": now, "parts": list(names), **given})
    spare = 0.0
    for name in names:
        share = (TINY_SHARE_S if tiny else part(name).share_s) + spare
        report.parts[name] = result = Result(part(name).question, share)
        report.say(name, f"{result.question} ({share:.0f} s at most)")
        began = time.monotonic()
        ceilings = None if report.ceilings is None else asdict(report.ceilings)
        task = {"name": name, "deadline": began + share, "ceilings": ceilings, **given}
        (isolated if apart else work)(task, lambda event: _take(report, event))
        result.seconds = time.monotonic() - began
        spare = max(0.0, share - result.seconds)
        report.say(name, result.status if result.why is None else f"{result.status}: {result.why}")
        if name == "ceilings" and result.status == "complete":
            report.ceilings = Ceilings.of(result.rows)
        done(report)
    return report


def _take(report: Report, event: Event) -> None:
    """An event of the part that runs, which is the last."""
    name = next(reversed(report.parts))
    match event:
        case {"row": row}:
            report.add_row(name, row)
        case {"say": text}:
            report.say(name, text)
        case {"about": found}:
            report.machine = found | report.machine
        case {"status": status, "why": why}:
            report.parts[name].status, report.parts[name].why = status, why


def work(task: dict[str, Any], tell: Tell) -> None:
    """Run the part that ``task`` names, in this process; ``tell`` takes its events."""
    device = torch.device(task["device"])
    tell({"about": facts(device)})
    bench = Bench(
        device=device,
        tiny=task["tiny"],
        model=task["model"],
        attention=task["attention"],
        deadline=task["deadline"] - GRACE_S,
        ceilings=None if task["ceilings"] is None else Ceilings(**task["ceilings"]),
        say=lambda text: tell({"say": text}),
        about=lambda found: tell({"about": found}),
    )
    status, why = run_part(part(task["name"]), bench, lambda row: tell({"row": row}))
    tell({"status": status, "why": why})


def isolated(task: dict[str, Any], tell: Tell, program: Sequence[str] = PROGRAM) -> None:
    """As :func:`work`, in a process of its own, which is killed when its time is over."""
    reading, writing = os.pipe()
    command = [*program, "--part", json.dumps(task), "--events", str(writing)]
    deadline = task["deadline"]
    child = subprocess.Popen(command, pass_fds=[writing], stdout=sys.stderr, start_new_session=True)
    os.close(writing)
    told = False
    try:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            for event in _lines(pipe, deadline):
                told = told or "status" in event
                tell(event)
        if not told and time.monotonic() >= deadline:
            tell({"status": "cut", "why": "it overstayed its time and was ended"})
        elif not told:
            code = child.wait()
            tell({"status": "failed", "why": f"its process ended with {code}; see above"})
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(max(0.0, deadline - time.monotonic()))
    finally:
        # The group: an engine in a process of its own belongs to it.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _lines(pipe: RawIOBase, deadline: float) -> Iterator[Event]:
    """Each line of JSON as it comes, until the writers have closed or the time is over."""
    pending = b""
    while (left := deadline - time.monotonic()) > 0:
        if not select.select([pipe], [], [], left)[0]:
            return
        read = pipe.read(65536)
        if not read:
            return
        *lines, pending = (pending + read).split(b"\n")
        for text in lines:
            yield json.loads(text)


def _child(task: str, events: int) -> None:
    os.set_inheritable(events, False)
    with os.fdopen(events, "w", buffering=1) as pipe:
        work(json.loads(task), lambda event: print(json.dumps(event), file=pipe, flush=True))


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m benches.gpu", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument(
        "--only", metavar="NAME", action="append", choices=NAMES, help="of: " + ", ".join(NAMES)
    )
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument(
        "--tiny", action="store_true", help="small shapes: shows that all of it runs"
    )
    parser.add_argument("--model", help=f"the shape, by name or folder; {MODEL} unless tiny")
    parser.add_argument("--attention", default="auto", help="what engines attend with")
    parser.add_argument("--json", metavar="PATH", help="write the figures there; - prints them")
    parser.add_argument("--here", action="store_true", help="all parts in this process")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--events", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.part is not None:
        _child(given.part, given.events)
        return
    if given.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; --device cpu --tiny shows that the bench runs")
    if given.device == "cpu" and not given.tiny:
        parser.error("on a CPU this takes hours; add --tiny")
    # The floors of every other part are over the ceilings.
    names = tuple(n for n in NAMES if not given.only or n in given.only or n == "ceilings")
    with nullcontext(MODEL) if not given.tiny else tiny_model() as default:
        report = run(
            names,
            given.device,
            given.tiny,
            given.model or default,
            attention=given.attention,
            apart=not given.here,
            done=partial(_write, given.json),
        )
    print(json.dumps(report.as_json(), indent=2) if given.json == "-" else report.as_text())


def _write(path: str | None, report: Report) -> None:
    if path is not None and path != "-":
        Path(path).write_text(json.dumps(report.as_json(), indent=2) + "\n")


if __name__ == "__main__":
    main()

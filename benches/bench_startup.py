"""How long until pyengine is there: ``--help``, ``import pyengine``, and a served demo model.

The floor is an interpreter that does nothing. Times are wall clock of a process of its own, the
median of several after one that warms the file cache; for ``serve``, from its start until the port
listens, and until ``/ready`` says 200.

    python benches/bench_startup.py [--json -] [--runs N]
"""

import argparse
import http.client
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from benches.figures import json_option, write_json

T = TypeVar("T")

PYTHON = [sys.executable]
PYENGINE = [*PYTHON, "-m", "pyengine"]


def process(command: list[str]) -> float:
    """Seconds from the start of ``command`` to its end."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def serve() -> tuple[float, float]:
    """Seconds until a served demo model listens, and until it is ready."""
    begin = time.perf_counter()
    server = subprocess.Popen(
        [*PYENGINE, "serve", "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        listening = ready = 0.0
        for line in server.stdout:
            if found := re.search(r"listening on http://(\S+):(\d+)", line):
                listening = time.perf_counter() - begin
                address = found[1], int(found[2])
            if line.startswith("ready:"):
                connection = http.client.HTTPConnection(*address, timeout=10)
                connection.request("GET", "/ready")
                assert connection.getresponse().status == 200
                ready = time.perf_counter() - begin
                connection.close()
                break
        return listening, ready
    finally:
        server.terminate()
        server.communicate()


def repeated(measure: Callable[[], T], runs: int) -> list[T]:
    """The results of ``runs`` calls of ``measure``, after a first that warms the caches."""
    measure()
    return [measure() for _ in range(runs)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    json_option(parser)
    parser.add_argument("--runs", type=int, default=7)
    arguments = parser.parse_args()
    commands = {
        "python -c pass": [*PYTHON, "-c", "pass"],
        "import pyengine": [*PYTHON, "-c", "import pyengine"],
        "pyengine --help": [*PYENGINE, "--help"],
        "pyengine serve --help": [*PYENGINE, "serve", "--help"],
        "import torch": [*PYTHON, "-c", "import torch"],
    }
    figures = {
        name: statistics.median(repeated(partial(process, command), arguments.runs))
        for name, command in commands.items()
    }
    starts = repeated(serve, max(1, arguments.runs // 3))
    figures["serve: port listens"] = statistics.median(start[0] for start in starts)
    figures["serve: model is ready"] = statistics.median(start[1] for start in starts)
    floor = figures["python -c pass"]
    rounded = {name: round(seconds, 4) for name, seconds in figures.items()}
    if write_json(rounded, arguments.json):
        for name, seconds in figures.items():
            print(f"{name:<24} {seconds * 1e3:8.1f} ms  {seconds / floor:6.1f} x the floor")


if __name__ == "__main__":
    main()

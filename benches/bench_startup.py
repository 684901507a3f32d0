"""How long until pyengine is there: ``--help``, ``import pyengine``, and two served models.

The floor is an interpreter that does nothing. Times are wall clock of a process of its own, the
median of several after one that warms the file cache. ``serve`` is timed with the demo model and
with S (random Llama, 49 million weights in bfloat16, a KV cache of 64 MiB): until the port listens,
until ``/ready`` says 200, and until the first token of an answer is there. Then the memory of all
its processes, pages that they share counted once (PSS).

    python benches/bench_startup.py [--json -] [--runs N]
"""

import argparse
import http.client
import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TypeVar

from benches.cpu_serving.models import SHAPES, tensors, write_folder
from benches.figures import json_option, write_json

T = TypeVar("T")

PYTHON = [sys.executable]
PYENGINE = [*PYTHON, "-m", "pyengine"]
POINTS = ("port listens", "model is ready", "first token")


def process(command: list[str]) -> float:
    """Seconds from the start of ``command`` to its end."""
    begin = time.perf_counter()
    subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    return time.perf_counter() - begin


def serve(*arguments: str) -> tuple[float, float, float, float]:
    """Seconds until a served model listens, is ready, and has sent a token; and MiB of memory."""
    begin = time.perf_counter()
    server = subprocess.Popen(
        [*PYENGINE, "serve", *arguments, "--port", "0"], stdout=subprocess.PIPE, text=True
    )
    try:
        assert server.stdout is not None
        listening = ready = token = memory = 0.0
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
                first_token(*address)
                token = time.perf_counter() - begin
                memory = sum(map(memory_mib, (server.pid, *children(server.pid))))
                break
        return listening, ready, token, memory
    finally:
        server.terminate()
        server.communicate()


def first_token(host: str, port: int) -> None:
    """Return when a streamed completion has brought its first token."""
    connection = http.client.HTTPConnection(host, port, timeout=10)
    body = {"prompt": "Hello", "stream": True, "max_tokens": 1}
    headers = {"Content-Type": "application/json"}
    connection.request("POST", "/v1/completions", json.dumps(body), headers)
    response = connection.getresponse()
    assert response.status == 200
    while not response.readline().startswith(b"data:"):
        pass
    connection.close()


def children(pid: int) -> list[int]:
    """The processes that ``pid`` has started."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def memory_mib(pid: int) -> float:
    """Memory of a process in MiB, its part of what it shares."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.partition("\nPss:")[2].split()[0]) / 1024


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
    memory = {}
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), SHAPES["S"], tensors(SHAPES["S"]))
        models = {"demo": (), "S": (folder, "--dtype", "bfloat16", "--kv-cache-mib", "64")}
        for name, model in models.items():
            starts = repeated(partial(serve, *model), max(1, arguments.runs // 2))
            *times, memory[name] = map(statistics.median, zip(*starts, strict=True))
            for point, seconds in zip(POINTS, times, strict=True):
                figures[f"serve {name}: {point}"] = seconds
    floor = figures["python -c pass"]
    rounded = {name: round(seconds, 4) for name, seconds in figures.items()}
    rounded |= {f"serve {name}: MiB": round(used, 1) for name, used in memory.items()}
    if write_json(rounded, arguments.json):
        for name, seconds in figures.items():
            print(f"{name:<26} {seconds * 1e3:8.1f} ms  {seconds / floor:6.1f} x the floor")
        for name, used in memory.items():
            print(f"{f'serve {name}: memory':<26} {used:8.1f} MiB")


if __name__ == "__main__":
    main()

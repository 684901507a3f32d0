"""Whether a replay of what a server was asked for has the waits that its clients had.

Servers on the simulated device are asked for completions at random times: free ones, ones with the
grammar by which a replay stands for all grammars, and ones with drafts. `pyengine record` writes
down what they do, and `pyengine profile --replay --device simulated` repeats it. Median and 99th
percentile of the first and of each further token stand beside each other; the exit status is 1
where two differ by more than 5%. A replay has no HTTP: steps must take longer than that by far.

    python -m benches.bench_replay [--seconds 45] [--rate 2] [--step-ms 80] [--only NAME]
        [--json PATH]
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import httpx

from benches.endurance.servers import MODEL, served
from benches.figures import json_option, write_json
from pyengine.profiling import schemas

WITHIN = 0.05
DRAFTS = ("--speculation", "ngram", "--simulated-acceptance", "0.7")
CASES: dict[str, tuple[str, ...]] = {"plain": (), "grammars": (), "drafts": DRAFTS}
RECORDS = json.loads(Path(schemas.__file__).with_suffix(".json").read_bytes())["records"]
PYENGINE = [sys.executable, "-m", "pyengine"]


async def load(url: str, seconds: float, rate: float, *, grammar: bool) -> None:
    """Ask for completions as a Poisson process, and read them as streams."""
    random.seed(7)
    form: dict[str, Any] = {"structured_outputs": {"json": RECORDS}}
    form = form if grammar else {"ignore_eos": True}

    async def ask(http: httpx.AsyncClient, number: int) -> None:
        body: dict[str, Any] = {
            "model": MODEL, "prompt": [number % 100 + 300] * random.randint(20, 200),
            "max_tokens": random.randint(20, 120), "stream": True,
        }  # fmt: skip
        async with http.stream("POST", "/v1/completions", json=body | form) as answer:
            answer.raise_for_status()
            async for _ in answer.aiter_bytes():
                pass

    async with httpx.AsyncClient(base_url=url, timeout=120) as http, asyncio.TaskGroup() as group:
        for number in range(int(seconds * rate)):
            group.create_task(ask(http, number))
            await asyncio.sleep(random.expovariate(rate))


def case(name: str, options: argparse.Namespace) -> dict[str, list[float]]:
    """Milliseconds recorded and replayed, by figure."""
    device = ("--device", "simulated", "--simulated-step-ms", options.step_ms)
    with tempfile.TemporaryDirectory() as folder:
        day, report = f"{folder}/day.jsonl", f"{folder}/report.json"
        with served(*device, "--mode", "server", *CASES[name]) as (url, _):
            record = [*PYENGINE, "record", url, day, "--seconds", str(2 * options.seconds + 20)]
            with subprocess.Popen(record) as recording:
                grammar = name == "grammars"
                asyncio.run(load(url, options.seconds, options.rate, grammar=grammar))
                recording.send_signal(2)
        replay = ["profile", "--replay", day, "--device", "simulated", "--json", report]
        subprocess.run([*PYENGINE, *replay], check=True)
        columns = json.loads(Path(report).read_text())["replays"]
    return {
        f"{field} {share}": [column[field][share] for column in columns]
        for field in ("first_token_ms", "next_token_ms")
        for share in ("p50", "p99")
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=45)
    parser.add_argument("--rate", type=float, default=2)
    parser.add_argument("--step-ms", default="80")
    parser.add_argument("--only", choices=CASES)
    json_option(parser)
    options = parser.parse_args()
    chosen = [options.only] if options.only else list(CASES)
    found = {name: case(name, options) for name in chosen}
    if write_json(found, options.json):
        for name, figures in found.items():
            for figure, (recorded, replayed) in figures.items():
                change = replayed / recorded - 1
                print(f"{name:<9} {figure:<20} {recorded:9.2f} {replayed:9.2f} {change:+7.1%}")
    pairs = [pair for figures in found.values() for pair in figures.values()]
    sys.exit(any(abs(replayed / recorded - 1) > WITHIN for recorded, replayed in pairs))


if __name__ == "__main__":
    main()

"""``pyengine bench`` against a server whose steps take a known time."""

import itertools
import json
import socket
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from pyengine.benchmark.load import Run, Seen, Target
from pyengine.benchmark.result import MEASURES, result
from pyengine.profiling.workload import arrivals
from tests.cli.conftest import Run as Command
from tests.programs import served

# Of ``vllm bench serve``.
KEYS = {
    "date", "endpoint_type", "backend", "label", "model_id", "tokenizer_id", "num_prompts",
    "request_rate", "burstiness",
    "max_concurrency", "duration", "completed", "failed", "total_input_tokens",
    "total_output_tokens", "request_throughput", "request_goodput", "output_throughput",
    "total_token_throughput", "max_output_tokens_per_s", "max_concurrent_requests", "rtfx",
    *(f"{how}_{name}_ms" for name in MEASURES
      for how in ("mean", "median", "std", "p50", "p90", "p99")),
}  # fmt: skip
DETAILS = {
    "input_lens", "output_lens", "start_times", "ttfts", "itls", "generated_texts", "errors",
}  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with served("--device", "simulated", "--simulated-step-ms", "2", "--port", "0") as server:
        yield server.url()


def test_two_servers_take_turns(url: str, pyengine: Command, tmp_path: Path) -> None:
    done = pyengine(
        "bench", url, "--peer", f"{url}/v1", "--requests", "6", "--output-tokens", "9",
        "--rate", "200", "--concurrency", "2,6", "--rounds", "2", "--goodput", "ttft:60000",
        "--goodput", "e2el:0.001", "--detailed", "--json", "found.json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ttft p99, ms" in done.stdout
    found: list[dict[str, Any]] = json.loads((tmp_path / "found.json").read_text())
    assert [each["max_concurrency"] for each in found] == [2, 2, 6, 6]
    for each in found:
        assert set(each) >= KEYS
        assert (each["completed"], each["failed"], each["total_output_tokens"]) == (12, 0, 108)
        assert each["total_input_tokens"] == 12 * 128
        assert each["max_concurrent_requests"] <= each["max_concurrency"]
        assert each["request_goodput"] == 0.0
        assert each["output_lens"] == [9] * 12
        assert {len(each[name]) for name in DETAILS} == {12}
        assert all(each["generated_texts"])
        assert each["max_output_tokens_per_s"] <= 108
        # Eight further steps of 2 ms at least.
        assert each["p50_tpot_ms"] >= 1.0
        assert each["p50_ttft_ms"] < each["p99_e2el_ms"]


def test_a_trace(url: str, pyengine: Command, tmp_path: Path) -> None:
    rows = [{"timestamp": 5 * n, "input_length": 700, "output_length": 4, "hash_ids": [1, n + 2]}
            for n in range(5)]  # fmt: skip
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    done = pyengine("bench", url, "--trace", "a.jsonl", "--rate-scale", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["completed"], found["total_input_tokens"]) == (5, 3500)
    (tmp_path / "a.csv").write_text(
        "TIMESTAMP,ContextTokens,GeneratedTokens\n"
        "2023-11-16 18:15:46.6805900,374,4\n2023-11-16 18:15:46.6905900,396,9\n"
    )
    done = pyengine("bench", url, "--trace", "a.csv", "--rounds", "2", "--json", "-")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["completed"], found["total_output_tokens"]) == (4, 26)
    done = pyengine("bench", url, "--trace", "a.jsonl", "--rate", "2")
    assert done.returncode == 2
    assert "--trace does not go with --rate" in done.stderr


def test_a_plot(url: str, pyengine: Command, tmp_path: Path) -> None:
    asked = ("bench", url, "--requests", "3", "--output-tokens", "3", "--plot", "found.svg")
    if find_spec("matplotlib") is None:
        done = pyengine(*asked)
        assert done.returncode == 1
        assert "pyengine-llm[plot]" in done.stderr
        return
    assert pyengine(*asked).returncode == 0
    assert "time to the first token" in (tmp_path / "found.svg").read_text()


def test_wrong_arguments_are_named(url: str, pyengine: Command) -> None:
    with socket.create_server(("127.0.0.1", 0)) as nobody:
        closed = nobody.getsockname()[1]
    done = pyengine("bench", f"http://127.0.0.1:{closed}")
    assert done.returncode == 1
    assert "does not tell what is served" in done.stderr
    done = pyengine("bench", url, "--model", "other")
    assert done.returncode == 1
    assert "serves pyengine-demo, not other" in done.stderr
    done = pyengine("bench", url, "--requests", "2", "--input-tokens", "5000")
    assert done.returncode == 1
    assert "failed: 400" in done.stderr
    assert pyengine("bench", url, "--goodput", "itl:3").returncode == 2


def test_a_poisson_process() -> None:
    given: dict[str, Any] = {"prompt_tokens": 3, "answer_tokens": 2, "vocab_size": 500}
    jobs = arrivals(4000, rate=50.0, seed=1, **given)
    times = [job.arrival_s for job in jobs]
    assert times == sorted(times)
    assert times[0] == 0.0
    assert 70 < times[-1] < 90
    gaps = [after - before for before, after in itertools.pairwise(times)]
    # Of an exponential distribution the deviation is the mean.
    mean = sum(gaps) / len(gaps)
    deviation = (sum((gap - mean) ** 2 for gap in gaps) / len(gaps)) ** 0.5
    assert 0.95 < deviation / mean < 1.05
    assert [job.prompt for job in arrivals(9, rate=None, seed=2, **given)] != [
        job.prompt for job in jobs[:9]
    ]
    assert {job.arrival_s for job in arrivals(9, rate=None, seed=2, **given)} == {0.0}


def test_figures_are_those_of_their_definitions() -> None:
    seen = [
        Seen(10, 0.0, [1.0, 2.0, 4.0], output_tokens=4),
        Seen(20, 1.0, [1.5], output_tokens=1),
        Seen(30, 1.0, error="500"),
    ]
    found = result(
        Target("http://x", "m"), [Run(seen, 8.0)], rate=2.0, concurrency=None,
        goals={"tpot": 999.0}, tokenizer="t",
    )  # fmt: skip
    assert (found["completed"], found["failed"], found["num_prompts"]) == (2, 1, 3)
    assert (found["total_input_tokens"], found["output_throughput"]) == (30, 5 / 8)
    assert (found["mean_ttft_ms"], found["mean_tpot_ms"]) == (750.0, 1000.0)
    assert (found["median_itl_ms"], found["p50_e2el_ms"]) == (1500.0, 2250.0)
    assert found["request_goodput"] == 1 / 8, "one token keeps any goal of further ones"
    assert found["max_concurrent_requests"] == 3
    # The second from 1 to 2: one of the first's three chunks, and all of the second's.
    assert found["max_output_tokens_per_s"] == pytest.approx(4 / 3 + 1)

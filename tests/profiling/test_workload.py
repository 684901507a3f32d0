"""Workloads: constant ones, and traces in both spellings."""

import json
from pathlib import Path

import pytest

from pyengine.errors import ConfigError
from pyengine.profiling.workload import HASHED_BLOCK, arrivals, read_trace
from tests.reference import fetched

CSV = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def jsonl(path: Path, *rows: dict[str, object]) -> Path:
    return write(path, "".join(json.dumps(row) + "\n" for row in rows))


def test_a_constant_workload_is_as_it_was_asked_for() -> None:
    jobs = arrivals(5, prompt_tokens=40, answer_tokens=7, vocab_size=300)
    assert [(job.arrival_s, len(job.prompt), job.answer_tokens) for job in jobs] == [
        (0.0, 40, 7)
    ] * 5
    assert len({tuple(job.prompt) for job in jobs}) == 5
    assert all(0 <= token < 300 for job in jobs for token in job.prompt)
    assert arrivals(5, prompt_tokens=40, answer_tokens=7, vocab_size=300) == jobs


def test_csv_arrivals_and_lengths(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", CSV)
    workload = read_trace(path).workload(vocab_size=500, max_context=2048)
    assert [(len(j.prompt), j.answer_tokens) for j in workload.jobs] == [
        (374, 44), (396, 109), (879, 55),
    ]  # fmt: skip
    assert [j.arrival_s for j in workload.jobs] == pytest.approx([0, 4.314579, 4.541877])
    fast = read_trace(path, limit=2).workload(vocab_size=500, max_context=2048, rate_scale=3)
    assert [j.arrival_s for j in fast.jobs] == pytest.approx([0, 4.314579 / 3])


def test_equal_block_ids_are_equal_tokens(tmp_path: Path) -> None:
    path = jsonl(
        tmp_path / "t.jsonl",
        {"timestamp": 0, "input_length": 1200, "output_length": 6, "hash_ids": [7, 8, 9]},
        {"timestamp": 500, "input_length": 1300, "output_length": 9, "hash_ids": [7, 8, 30]},
        {"timestamp": 250, "input_length": 100, "output_length": 1},
    )
    first, third, second = read_trace(path).workload(vocab_size=500, max_context=4096).jobs
    assert [j.arrival_s for j in (first, third, second)] == [0.0, 0.25, 0.5]
    shared = 2 * HASHED_BLOCK
    assert first.prompt[:shared] == second.prompt[:shared]
    assert first.prompt[shared:] != second.prompt[shared : len(first.prompt)]
    assert (len(first.prompt), len(second.prompt), len(third.prompt)) == (1200, 1300, 100)
    again = read_trace(path).workload(vocab_size=500, max_context=4096, seed=1).jobs
    assert [len(job.prompt) for job in again] == [1200, 100, 1300]
    assert again[0].prompt[:shared] == again[2].prompt[:shared] != first.prompt[:shared]
    assert again[1].prompt != third.prompt


def test_request_that_does_not_fit_is_clipped_and_counted_or_refused(tmp_path: Path) -> None:
    path = write(tmp_path / "t.csv", CSV + "2023-11-16 18:15:59.0000000,50,4000\n")
    with pytest.raises(ConfigError, match="--clip"):
        read_trace(path).workload(vocab_size=500, max_context=512)
    workload = read_trace(path).workload(vocab_size=500, max_context=512, clip=True)
    assert workload.clipped == 2
    assert [(len(j.prompt), j.answer_tokens) for j in workload.jobs] == [
        (374, 44), (396, 109), (457, 55), (50, 462),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "a,b\n1,2\n", "no trace"),
        ("t.csv", CSV.replace("374", "many"), "no trace"),
        ("t.jsonl", '{"timestamp": 1}\n', "no trace"),
        ("t.jsonl", "[1", "no trace"),
        ("t.csv", "TIMESTAMP,ContextTokens,GeneratedTokens\n", "no request"),
        ("t.txt", CSV, "csv or a .jsonl"),
    ],
)
def test_file_that_is_no_trace_is_refused(
    tmp_path: Path, name: str, text: str, message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        read_trace(write(tmp_path / name, text)).workload(vocab_size=500, max_context=2048)
    with pytest.raises(ConfigError, match="cannot read"):
        read_trace(tmp_path / "absent.csv").workload(vocab_size=500, max_context=2048)


def test_the_real_traces() -> None:
    azure = read_trace(fetched("traces/azure-2023-conversation.csv"), limit=300).workload(
        vocab_size=500, max_context=2048, clip=True
    )
    mooncake = read_trace(fetched("traces/mooncake-synthetic.jsonl"), limit=50).workload(
        vocab_size=500, max_context=4096, clip=True
    )
    assert (len(azure.jobs), len(mooncake.jobs)) == (300, 50)
    assert azure.jobs[-1].arrival_s > 10
    assert mooncake.clipped > 0
    assert max(len(j.prompt) + j.answer_tokens for j in mooncake.jobs) <= 4096

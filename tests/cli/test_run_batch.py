"""``pyengine run-batch``: every line once, however often it is killed."""

import asyncio
import fcntl
import json
import signal
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from pyengine.cli import main
from tests.programs import PYENGINE, running, until

FAST = ("--device", "simulated", "--simulated-step-ms", "0")


def request(number: int, url: str = "/v1/chat/completions", **body: Any) -> dict[str, Any]:
    if not body:
        body = {"messages": [{"role": "user", "content": f"Number {number}"}], "max_tokens": 5}
    return {"custom_id": f"r{number}", "method": "POST", "url": url, "body": body}


def written(path: Path, requests: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in requests))
    return path


def answers(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def run(source: Path, target: Path, *arguments: str) -> Any:
    return CliRunner().invoke(
        main, ["run-batch", "-i", str(source), "-o", str(target), *FAST, *arguments]
    )


def test_all_endpoints_and_failures(tmp_path: Path) -> None:
    source = written(
        tmp_path / "in",
        [
            request(1),
            request(2, "/v1/completions", prompt="a", max_tokens=3),
            request(3, "/v1/responses", input="a", max_output_tokens=3),
            request(4, "/v1/messages", max_tokens=3, messages=[{"role": "user", "content": "a"}]),
            request(5, "/v1/completions", prompt="a", max_tokens=-7),
            request(6, "/v1/completions", prompt="a", model="other"),
        ],
    )
    target = tmp_path / "out"
    done = run(source, target)
    assert done.exit_code == 0, done.output
    assert "6 answers, 0 of them of earlier runs; 2 of this run failed" in done.output
    lines = {line["custom_id"]: line for line in answers(target)}
    assert len(lines) == len({line["id"] for line in lines.values()}) == 6
    statuses = [lines[f"r{n}"]["response"]["status_code"] for n in range(1, 7)]
    assert statuses == [200, 200, 200, 200, 400, 404]
    kinds = [lines[f"r{n}"]["response"]["body"].get("object") for n in range(1, 4)]
    assert kinds == ["chat.completion", "text_completion", "response"]
    assert "warnings" not in lines["r3"]["response"]["body"]
    assert lines["r5"]["response"]["body"]["error"]["param"] == "max_tokens"
    assert all(line["error"] is None for line in lines.values())
    # It has nothing more to do then, and a line that was cut short is written again.
    data = target.read_bytes()
    assert run(source, target).exit_code == 0
    assert target.read_bytes() == data
    kept = data.splitlines(keepends=True)
    target.write_bytes(b"".join(kept[:4]) + kept[4][:30])
    assert "4 of them of earlier runs" in run(source, target).output
    assert sorted(line["custom_id"] for line in answers(target)) == [f"r{n}" for n in range(1, 7)]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("{", "line 2: The body is not valid JSON"),
        ('{"custom_id": "x"}', "line 2: Missing required parameter: 'url'"),
        (json.dumps(request(1)), "line 2: 'custom_id' must be unique; 'r1' comes twice"),
        (json.dumps(request(2, "/v1/models")), "line 2: 'url' must be one of /v1/chat"),
        (json.dumps(request(2, prompt="a", stream=True)), "line 2: 'body.stream' is not for"),
    ],
)
def test_malformed_input(tmp_path: Path, line: str, says: str) -> None:
    source = written(tmp_path / "in", [request(1)])
    source.write_text(source.read_text() + line + "\n")
    done = run(source, tmp_path / "out")
    assert done.exit_code == 1
    assert says in done.output
    assert not (tmp_path / "out").exists()


def test_outputs_that_are_something_else(tmp_path: Path) -> None:
    source, target = written(tmp_path / "in", [request(1)]), tmp_path / "out"
    target.write_text('{"custom_id": "other"}\n')
    assert "'other', which" in run(source, target).output
    target.write_text("text\n")
    assert "in line 1" in run(source, target).output
    assert target.read_text() == "text\n"
    with target.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert "another process writes to" in run(source, target).output
    assert "cannot be read" in run(tmp_path / "none", target).output
    assert "cannot be written" in run(source, tmp_path / "no" / "out").output


@pytest.mark.slow
def test_killed_and_run_again(tmp_path: Path) -> None:
    source = written(tmp_path / "in", [request(number) for number in range(300)])
    target = tmp_path / "out"
    slow = ("--device", "simulated", "--simulated-step-ms", "20", "--max-sequences", "4")
    command = (*PYENGINE, "run-batch", "-i", str(source), "-o", str(target), *slow)
    for lines in (20, 60):
        with running(*command) as program:
            asyncio.run(until(partial(_has, target, lines)))
            assert program.end(signal.SIGKILL) == -signal.SIGKILL
        assert lines <= _count(target) < 300
    assert run(source, target).exit_code == 0
    made = answers(target)
    assert len(made) == 300
    assert {line["custom_id"] for line in made} == {f"r{number}" for number in range(300)}
    assert {line["response"]["status_code"] for line in made} == {200}


def _has(path: Path, lines: int) -> bool:
    return _count(path) >= lines


def _count(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0

"""The environment that ``make serve`` makes has what serving on a CPU needs, and no more."""

import json
import shutil
import signal
import subprocess
import urllib.request
from pathlib import Path

import pytest

from tests.programs import REPOSITORY, served

MOST_BYTES = 200_000_000  # besides uv, maturin and pip, which build it
TOOLS = ("uv", "maturin", "pip", "setuptools")


def size(folder: Path) -> int:
    """The bytes of all files below ``folder`` that do not belong to the tools."""
    return sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and not any(part.startswith(TOOLS) for part in path.parts[-4:])
    )


@pytest.mark.slow
def test_environment_of_make_serve_answers_without_torch(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "constraints.txt"):
        shutil.copy(REPOSITORY / name, tmp_path)
    made = subprocess.run(
        ["make", ".venv/serves"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert made.returncode == 0, made.stderr
    (packages,) = (tmp_path / ".venv/lib").glob("python*/site-packages")
    assert size(packages) < MOST_BYTES
    names = {path.name for path in packages.iterdir()}
    assert not names & {"torch", "transformers", "pytest", "mypy", "openai"}

    command = (str(tmp_path / ".venv/bin/python"), "-m", "pyengine")
    with served("--port", "0", command=command, cwd=tmp_path) as server:
        question = {
            "model": "pyengine-demo",
            "temperature": 0,
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
        }
        request = urllib.request.Request(
            f"{server.url()}/v1/chat/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            answer = json.load(response)
        assert "Paris" in answer["choices"][0]["message"]["content"]
        assert server.end(signal.SIGTERM) == 0

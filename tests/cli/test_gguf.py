"""``pyengine complete`` and ``pyengine serve`` with a GGUF file."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest

from pyengine.demo import MODEL_PATH
from tests.cli.conftest import Run
from tests.model.test_gguf import write
from tests.programs import environment, served

pytestmark = pytest.mark.slow

QUESTION = "What is the capital of France?"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The demo model, its matrices of several types, in several files; the first of them."""
    types = {"attn_q": "Q4_0", "ffn_up": "Q8_0", "ffn_gate": "Q8_0", "ffn_down": "Q5_0"}
    write(MODEL_PATH, tmp_path / "demo.gguf", "llama", types, MODEL_PATH, tensors_a_file=20)
    return min(tmp_path.glob("demo-*.gguf"))


def test_a_file_answers(file: Path, tmp_path: Path, pyengine: Run) -> None:
    ask = ("complete", str(file), "--chat", "--temperature", "0", "--prompt", QUESTION)
    done = pyengine(*ask, XDG_CACHE_HOME=str(tmp_path / "cache"))
    assert (done.returncode, done.stderr) == (0, "")
    assert "Paris" in done.stdout


def test_a_file_is_served_by_its_name(file: Path, tmp_path: Path) -> None:
    env = environment(XDG_CACHE_HOME=str(tmp_path / "cache"))
    with served(str(file), "--port", "0", env=env) as server:
        with urllib.request.urlopen(f"{server.url()}/v1/models", timeout=60) as response:
            assert [model["id"] for model in json.load(response)["data"]] == ["demo"]
        asked = {"model": "demo", "messages": [{"role": "user", "content": QUESTION}]}
        request = urllib.request.Request(
            f"{server.url()}/v1/chat/completions",
            json.dumps(asked | {"temperature": 0}).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert "Paris" in json.load(response)["choices"][0]["message"]["content"]
        assert server.end(signal.SIGTERM) == 0

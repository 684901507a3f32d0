"""No process that serves on the CPU imports torch; what needs it says so where it is missing."""

import json
import signal
import urllib.request
from pathlib import Path

import pytest

from tests.programs import environment, python, served

# Every process of Python writes its command, and each of these packages that it imports.
WATCH = """
import sys
def write(kind, text):
    with open({log!r}, "a") as log:
        log.write(kind + " " + text + chr(10))
class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name in ("torch", "transformers", "safetensors", "triton"):
            write("import", name)
sys.meta_path.insert(0, Watch)
write("process", " ".join(sys.orig_argv))
"""


@pytest.mark.slow
@pytest.mark.parametrize("device", ["cpu", "simulated"])
def test_no_serving_process_imports_torch(device: str, tmp_path: Path) -> None:
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(log=str(log)))
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    arguments = ("--port", "0", "--device", device, "--workers", "2")
    with served(*arguments, env=env) as server:
        question = {
            "model": "pyengine-demo",
            "messages": [{"role": "user", "content": "What is the capital of France?"}],
            "max_tokens": 16,
            "logprobs": True,
        }
        request = urllib.request.Request(
            f"{server.url()}/v1/chat/completions",
            json.dumps(question).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=60) as response:
            assert json.load(response)["usage"]["completion_tokens"]
        assert server.end(signal.SIGTERM) == 0
    lines = log.read_text().splitlines()
    processes = [line for line in lines if line.startswith("process")]
    assert any("engine_main" in line for line in processes)
    assert len(processes) >= 3  # the command, the engine, a worker
    assert [line for line in lines if line.startswith("import")] == []


WITHOUT = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
sys.modules["torch"] = None
from pyengine.errors import ConfigError
from pyengine.model.devices import load_runner, settled
from pyengine.settings.config import EngineConfig
assert settled(EngineConfig()).device == "cpu"
for settings in ({"device": "cuda"}, {"tensor_parallel": 2}):
    try:
        load_runner(EngineConfig(**settings))
    except ConfigError as error:
        print(error.param, error)
"""


def test_what_needs_torch_says_what_to_install() -> None:
    device, ranks = python(WITHOUT).splitlines()
    assert device == (
        "device 'device' of cuda needs torch, which is not installed here: "
        "pip install 'pyengine[cuda]'"
    )
    assert ranks.startswith("tensor_parallel 'tensor_parallel' of 2 needs torch")
    assert ranks.endswith("pip install 'pyengine[torch]'")

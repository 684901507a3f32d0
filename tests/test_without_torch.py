"""Serving on the CPU imports no torch, and over HTTP no numpy; what needs it says so where it is
missing.
"""

import json
import signal
import urllib.request
from pathlib import Path

import pytest

from benches.cpu_serving.models import SHAPES, tensors, write_folder
from tests.programs import children, environment, python, served

CACHE_MIB = 16

# Every process of Python writes its command, and each of these packages that it imports.
WATCH = """
import sys
def write(kind, text):
    with open({log!r}, "a") as log:
        log.write(kind + " " + text + chr(10))
class Watch:
    @staticmethod
    def find_spec(name, path=None, target=None):
        engine = "engine_main" in " ".join(sys.orig_argv)
        if name in ("torch", "transformers", "safetensors", "triton") or (
            name in ("numpy", "ml_dtypes") and not engine
        ):
            write("import", name)
sys.meta_path.insert(0, Watch)
write("process", " ".join(sys.orig_argv))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("device", "workers"), [("cpu", 2), ("simulated", 1)])
def test_no_serving_process_imports_what_it_does_not_need(
    device: str, workers: int, tmp_path: Path
) -> None:
    log = tmp_path / "log"
    (tmp_path / "sitecustomize.py").write_text(WATCH.format(log=str(log)))
    env = environment()
    env["PYTHONPATH"] = f"{tmp_path}:{env['PYTHONPATH']}"
    arguments = ("--port", "0", "--device", device, "--workers", str(workers))
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
    assert len(processes) >= 1 + workers  # the command, the engine, workers beside the command
    assert [line for line in lines if line.startswith("import")] == []


@pytest.mark.slow
def test_a_small_model_takes_little_memory(tmp_path: Path) -> None:
    """49 million weights in bfloat16, whose KV cache is filled."""
    shape = SHAPES["S"]
    write_folder(tmp_path, shape, tensors(shape))
    arguments = ("--port", "0", "--dtype", "bfloat16", "--kv-cache-mib", str(CACHE_MIB))
    with served(str(tmp_path), *arguments, "--workers", "2") as server:
        url = server.url()
        prompts = [[token] * 1000 for token in range(100, 103)]  # more than the cache holds
        body = {"prompt": prompts, "max_tokens": 4, "ignore_eos": True}
        request = urllib.request.Request(
            f"{url}/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as response:
            assert json.load(response)["usage"]["completion_tokens"] == 12
        everyone = (server.process.pid, *children(server.process.pid))
        assert len(everyone) == 4
        assert sum(map(memory_mib, everyone)) < 500 + CACHE_MIB
        assert server.end(signal.SIGTERM) == 0


def memory_mib(pid: int) -> float:
    """Memory of a process, its part of what it shares."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
    return int(rollup.partition("\nPss:")[2].split()[0]) / 1024


WITHOUT = """
import importlib.util, sys
find_spec = importlib.util.find_spec
importlib.util.find_spec = lambda name, *rest: None if name == "torch" else find_spec(name, *rest)
sys.modules["torch"] = None
from pyengine.errors import ConfigError
from pyengine.model.devices import settled
from pyengine.settings.config import EngineConfig
assert settled(EngineConfig()).device == "cpu"
for settings in ({"device": "cuda"}, {"tensor_parallel": 2}):
    try:
        settled(EngineConfig(**settings))
    except ConfigError as error:
        print(error.param, error)
"""


def test_feature_that_needs_torch_says_what_to_install() -> None:
    device, ranks = python(WITHOUT).splitlines()
    assert device == (
        "device 'device' of cuda needs torch, which is not installed here: "
        "pip install 'pyengine-llm[cuda]'"
    )
    assert ranks.startswith("tensor_parallel 'tensor_parallel' of 2 needs torch")
    assert ranks.endswith("pip install 'pyengine-llm[torch]'")

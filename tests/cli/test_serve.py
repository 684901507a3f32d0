"""``pyengine serve``, as a process that is asked by the openai client and stopped by signals."""

import json
import os
import re
import signal
import socket
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import openai
import pytest

from pyengine.cli.serve import summary
from pyengine.http.serving.server import BROKEN_OFF
from pyengine.queues import EngineInfo
from pyengine.request.generation_config import GenerationConfig
from pyengine.sampling import SamplingParams
from pyengine.settings.config import EngineConfig
from tests.cli.conftest import Run
from tests.clients import Reader, begun, client_of, tokens_of
from tests.programs import REPOSITORY, served

QUESTION: Any = [{"role": "user", "content": "What is the capital of France?"}]
SLOW = ("--device", "simulated", "--simulated-step-ms", "20")


@pytest.mark.parametrize("placement", ["process", "thread"])
def test_serve_answers_the_openai_client_and_stops_when_told(placement: str) -> None:
    with (
        served("--port", "0", "--placement", placement) as server,
        client_of(server.url()) as client,
    ):
        answer = client.chat.completions.create(
            model="pyengine-demo", messages=QUESTION, temperature=0
        )
        assert "Paris" in (answer.choices[0].message.content or "")
        chunks = client.chat.completions.create(
            model="pyengine-demo", messages=QUESTION, temperature=0, stream=True
        )
        streamed = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
        assert streamed == answer.choices[0].message.content
        assert server.end(signal.SIGTERM) == 0
        assert server.output[-2:] == ["stopped\n", ""]


@pytest.mark.slow
def test_the_summary_says_what_was_chosen_and_its_curl_works() -> None:
    with served("--port", "0", "--max-sequences", "3", "--no-prefix-cache") as server:
        url = server.url()
        text = "".join(server.output)
        assert "local: up to 3 sequences and 1024 tokens in a step" in text
        assert "prefix cache off" in text
        curl = re.search(r"curl .*\\\n.*", text)
        assert curl is not None
        assert url in curl[0]
        done = subprocess.run(
            curl[0], shell=True, capture_output=True, text=True, timeout=60, check=True
        )
        assert json.loads(done.stdout)["choices"][0]["message"]["content"]
        assert server.end(signal.SIGINT) == 0


def _engine(info: EngineInfo, **settings: Any) -> Any:
    """What :func:`summary` reads of an engine."""
    made = EngineConfig(**settings)
    return SimpleNamespace(
        config=made, info=info, model_name="m", generation_config=GenerationConfig()
    )


def test_the_summary_says_how_requests_are_sampled() -> None:
    engine = _engine(EngineInfo(2048, 512, 99, "cpu", 16, 1024))
    assert "  sampling  as requests say" in summary(engine, "u", "process").splitlines()
    params = SamplingParams(temperature=0.6, top_k=20)
    engine.generation_config = GenerationConfig(params, ("num_beams",))
    wanted = "  sampling  temperature 0.6, top_k 20 by generation_config.json; not num_beams of it"
    assert wanted in summary(engine, "u", "process").splitlines()


def test_the_summary_says_what_the_device_settled() -> None:
    info = EngineInfo(
        2048,
        512,
        99,
        "cuda, A GPU, bfloat16",
        1024,
        8192,
        {"attention": "triton 3", "memory": "80.0 GiB: ..."},
    )
    engine = _engine(info)
    lines = summary(engine, "http://here", "process").splitlines()
    assert "  device    cuda, A GPU, bfloat16, engine in a process of its own" in lines
    assert "  cache     99 blocks of 16 tokens, prefix cache on" in lines
    assert "  attention triton 3" in lines
    assert "  mode      local: up to 1024 sequences and 8192 tokens in a step" in lines
    assert "  memory    80.0 GiB: ..." in lines


WHERE = " (where they are expected to save time)"


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({}, "forced, prediction, ngram" + WHERE),
        ({"draft_model": "demo"}, "forced, prediction, ngram, draft_model" + WHERE),
        ({"speculation": ("ngram",)}, "ngram" + WHERE),
        ({"speculation": ()}, "none"),
        ({"max_draft": 0}, "none"),
    ],
)
def test_the_summary_names_the_draft_sources(settings: dict[str, Any], says: str) -> None:
    info = EngineInfo(2048, 512, 99, "cpu", 16, 1024)
    engine = _engine(info, **settings)
    assert f"  drafts    {says}" in summary(engine, "http://here", "process").splitlines()


@pytest.mark.slow
def test_a_running_answer_is_finished_before_the_server_stops() -> None:
    with served("--port", "0", *SLOW) as server, client_of(server.url()) as client:
        chunks = begun(client, 40)
        server.process.send_signal(signal.SIGTERM)
        server.expect("draining 1 requests")
        assert tokens_of(chunks) == 40
        assert server.wait() == 0


@pytest.mark.slow
@pytest.mark.parametrize(("arguments", "twice"), [((), True), (("--drain-seconds", "0.1"), False)])
def test_the_drain_is_bounded_and_a_second_signal_ends_it(
    arguments: tuple[str, ...], twice: bool
) -> None:
    with served("--port", "0", *SLOW, *arguments) as server, client_of(server.url()) as client:
        reader = Reader(begun(client, 1500))
        server.process.send_signal(signal.SIGINT)
        server.expect("draining 1 requests")
        if twice:
            server.process.send_signal(signal.SIGINT)
        assert server.wait() == BROKEN_OFF
        assert isinstance(reader.wait(), openai.APIError)  # the stream gave the reason


@pytest.mark.parametrize(
    ("flag", "instead"),
    [
        ("--api-key", "PYENGINE_API_KEY, or --api-key-file, keeps it secret"),
        ("--admin-key", "PYENGINE_ADMIN_KEY keeps it secret"),
        ("--metrics-key", "PYENGINE_METRICS_KEY keeps it secret"),
    ],
)
def test_a_key_that_the_list_of_processes_shows_brings_a_warning(
    flag: str, instead: str, pyengine: Run
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])  # so that it ends by itself
        shown = pyengine("serve", "--port", port, flag, "sk-secret-1").stderr
        hidden = pyengine("serve", "--port", port, PYENGINE_API_KEY="sk-secret-1").stderr
    assert shown.startswith(f"Warning: everyone on this machine can read {flag} in the list of")
    assert instead in shown
    assert "sk-secret" not in shown
    assert "Warning" not in hidden


def test_a_port_in_use_is_one_clear_line(pyengine: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pyengine("serve", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: port {port} on 127.0.0.1 is in use")
    assert done.stderr.count("\n") == 1


def test_a_signal_while_loading_stops_at_once() -> None:
    with served("--port", "0", *SLOW) as server:
        server.expect("listening on")
        assert server.end(signal.SIGTERM) == 0


def test_a_signal_while_several_workers_load_stops_at_once() -> None:
    with served("--port", "0", "--workers", "2", *SLOW) as server:
        server.expect("listening on")
        assert server.end(signal.SIGTERM) == 0


def test_several_workers_on_a_port_in_use_are_one_clear_line(pyengine: Run) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = pyengine("serve", "--workers", "2", "--port", str(port))
    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: port {port} on 127.0.0.1 is in use")
    assert done.stderr.count("\n") == 1


def test_several_workers_cannot_share_a_thread(pyengine: Run) -> None:
    done = pyengine("serve", "--workers", "2", "--placement", "thread")
    assert done.returncode == 2
    assert "--placement process" in done.stderr


@pytest.mark.slow
def test_without_smg_the_command_says_so_in_one_line(pyengine: Run, tmp_path: Path) -> None:
    hidden = tmp_path / "sitecustomize.py"
    hidden.write_text(
        "import importlib.util as u\nfind = u.find_spec\n"
        "u.find_spec = lambda name, *more: None if name == 'smg' else find(name, *more)\n"
    )
    path = f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"
    path += f"{os.pathsep}{REPOSITORY}"
    done = pyengine("serve", "--replicas", "2", "--port", "0", PYTHONPATH=path)
    assert done.returncode == 1
    assert done.stderr.startswith("Error: more than one of --replicas needs the router smg")
    assert done.stderr.count("\n") == 1

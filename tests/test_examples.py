"""The examples do what they say."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import httpx
import pytest

from tests.programs import REPOSITORY, environment, served


@pytest.mark.slow
def test_embed(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "embed.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert "Paris" in said["France"]
    assert "pyengine" in said["name"]
    assert said["left"] == "got 1 byte and left"
    assert "deadline" in said["hurry"]
    assert said["blocks held"].startswith("0, ")


@pytest.mark.slow
def test_logits_processor(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, REPOSITORY / "examples" / "logits_processor.py"],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=environment(),
        timeout=100,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    whole, without_e, without_i = (line.partition(": ")[2] for line in done.stdout.splitlines())
    assert "Paris" in whole
    assert "e" not in without_e
    assert "i" not in without_i
    assert len({whole, without_e, without_i}) == 3


@pytest.mark.slow
async def test_fastapi_service() -> None:
    path = REPOSITORY / "examples" / "fastapi_service.py"
    spec = importlib.util.spec_from_file_location("fastapi_service", path)
    assert spec is not None
    assert spec.loader is not None
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    transport = httpx.ASGITransport(service.app)
    async with (
        service.lifespan(service.app),
        httpx.AsyncClient(transport=transport, base_url="http://service") as http,
    ):
        models = await http.get("/llm/v1/models")
        assert models.json()["data"][0]["id"] == "pyengine-demo"
        summary = await http.get("/summary", params={"text": "The cat sat on the mat."})
        assert summary.json()["summary"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "package", "end"),
    [
        ("langchain_chat", "langchain_openai", "vectors: 192 192"),
        ("llama_index_chat", "llama_index.llms.openai_like", "vector: 192"),
    ],
)
def test_frameworks(example: str, package: str, end: str) -> None:
    try:
        found = importlib.util.find_spec(package)
    except ModuleNotFoundError:
        found = None
    if found is None:
        pytest.skip(
            f"{package} is not here; LlamaIndex needs openai below 3, others need .venv/clients"
        )
    with served("--port", "0") as server:
        done = subprocess.run(
            [
                sys.executable,
                REPOSITORY / "examples" / f"{example}.py",
                "--url",
                f"{server.url()}/v1",
            ],
            capture_output=True,
            text=True,
            env=environment(),
            timeout=100,
            check=False,
        )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["The capital of France is Paris.", end]


def test_every_example_is_in_the_list() -> None:
    listed = (REPOSITORY / "examples" / "README.md").read_text()
    for example in (REPOSITORY / "examples").glob("*.py"):
        assert f"({example.name})" in listed
        assert f"examples/{example.name}" in listed

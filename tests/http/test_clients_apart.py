"""Clients whose packages cannot be had beside this project's: programs for ``build/clients``.

``make build/clients`` installs them. A job in ``client_jobs/`` is a program that takes the server's
address and the model's name, does what the client is usually taken for, and fails if that fails.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine
from pyengine.chat.template import ChatTemplate
from pyengine.demo import MODEL_PATH
from pyengine.http.serving.server import HttpServer
from tests.http.fake_engine import FakeEngine
from tests.http.test_tools import TEMPLATE
from tests.models import random_llama
from tests.programs import REPOSITORY

PYTHON = REPOSITORY / "build/clients/bin/python"
JOBS = Path(__file__).parent / "client_jobs"
MODEL = "org/fake"
DRY = "It is dry."
CALL = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
OBJECT = '{"city": "Paris", "dry": true}'
# What the model says to each job, one answer after the other.
ANSWERS = {
    "llama_index": [DRY, DRY, DRY, CALL],
    "litellm": [DRY] * 6,
    "instructor": [
        OBJECT,
        f'<tool_call>\n{{"name": "Weather", "arguments": {OBJECT}}}\n</tool_call>',
    ],
    "pydantic_ai": [CALL, DRY],
    "openai_agents": [CALL, DRY, CALL, DRY],
    "autogen": [CALL, DRY, CALL, DRY],
    "haystack": [DRY, DRY, CALL],
    "dspy": [f"[[ ## answer ## ]]\n{DRY}\n\n[[ ## completed ## ]]"],
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not PYTHON.exists(), reason="make build/clients installs them"),
]


@pytest.fixture
def engine() -> FakeEngine | AsyncEngine:
    return FakeEngine(template=ChatTemplate(TEMPLATE), max_context=4096)


async def job(name: str, *arguments: str) -> str:
    """What a job prints, once it has succeeded."""
    quiet = {
        "LITELLM_LOCAL_MODEL_COST_MAP": "True", "HF_HUB_OFFLINE": "1", "DO_NOT_TRACK": "1",
        "HAYSTACK_TELEMETRY_ENABLED": "False", "TIKTOKEN_CACHE_DIR": "",
    }  # fmt: skip
    process = await asyncio.create_subprocess_exec(
        PYTHON, JOBS / f"{name}_job.py", *arguments,
        env={**os.environ, **quiet},
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    said, complaints = await process.communicate()
    assert process.returncode == 0, complaints.decode()[-4000:]
    return said.decode()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ANSWERS)
async def test_by_changing_the_url(name: str, server: HttpServer, engine: FakeEngine) -> None:
    engine.answers = list(ANSWERS[name])
    await job(name, server.url, MODEL)
    assert not engine.answers, "each answer was asked for"


class TestGuideLlm:
    """A benchmark of the demo model."""

    @pytest.fixture
    def engine(self) -> AsyncEngine:
        return AsyncEngine()

    @pytest.mark.timeout(300)
    async def test_all_requests_succeed(
        self, server: HttpServer, engine: AsyncEngine, tmp_path: Path
    ) -> None:
        report = str(tmp_path / "report.json")
        await job("guidellm", server.url, engine.model_name, str(MODEL_PATH), report)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, random_llama(folder, seed=3)


class TestLmEval:
    """The log-likelihoods of lm-eval, with a model that computes."""

    @pytest.fixture
    def engine(self, llama: tuple[Path, LlamaForCausalLM]) -> AsyncEngine:
        return AsyncEngine(llama[0], dtype="float32", device="cpu", prefill_chunk=32)

    @pytest.mark.timeout(300)
    async def test_log_probabilities_equal_transformers(
        self, server: HttpServer, engine: AsyncEngine, llama: tuple[Path, LlamaForCausalLM]
    ) -> None:
        pairs = [("The quick brown fox", " jumps over"), ("One, two,", " three"), ("A", " b c d")]
        folder, model = llama
        said = await job("lm_eval", server.url, engine.model_name, str(folder), json.dumps(pairs))
        found: list[Any] = json.loads(said.splitlines()[-1])
        for (context, text), (total, _greedy) in zip(pairs, found, strict=True):
            before = engine.tokenizer.encode(context)
            whole = engine.tokenizer.encode(context + text)
            with torch.inference_mode():
                table = model(torch.tensor([whole])).logits[0].double().log_softmax(-1)
            wanted = sum(float(table[at - 1, whole[at]]) for at in range(len(before), len(whole)))
            assert total == pytest.approx(wanted, abs=1e-3)

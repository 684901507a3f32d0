"""Log-probabilities of prompts over HTTP: those of transformers, cached or not."""

from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine
from tests.models import random_llama

PROMPT = "The quick brown fox, f\u00fcnf \U0001f44b, jumps over the lazy dog; and then some more."


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("model")


@pytest.fixture(scope="module")
def model(folder: Path) -> LlamaForCausalLM:
    made: LlamaForCausalLM = random_llama(folder)
    return made


@pytest.fixture
def engine(folder: Path, model: LlamaForCausalLM) -> AsyncEngine:
    return AsyncEngine(folder, dtype="float32", device="cpu", prefill_chunk=32)


@torch.inference_mode()
def reference(model: LlamaForCausalLM, tokens: list[int]) -> torch.Tensor:
    """The log-softmax for each token but the first, [tokens - 1, vocabulary]."""
    logits: torch.Tensor = model(torch.tensor([tokens])).logits[0, :-1]
    return logits.double().log_softmax(-1)


async def test_echoed_prompts(
    client: openai.AsyncOpenAI, engine: AsyncEngine, model: LlamaForCausalLM
) -> None:
    tokens = await engine.encode(PROMPT)
    table = reference(model, tokens)
    expected = [float(row[token]) for row, token in zip(table, tokens[1:], strict=True)]
    # Chunked, then found in the cache; as text and as token ids; with an answer and without.
    for prompt, most in ((PROMPT, 0), (tokens, 1), (PROMPT, 4)):
        answer: Any = await client.completions.create(
            model=engine.model_name, prompt=prompt, echo=True, logprobs=2, max_tokens=most,
            temperature=0, extra_body={"ignore_eos": True, "prompt_logprobs": 3},
        )  # fmt: skip
        choice = answer.choices[0]
        assert choice.text.startswith(PROMPT)
        said = choice.logprobs
        assert len(said.tokens) == len(said.top_logprobs) == len(tokens) + most
        assert said.token_logprobs[0] is None
        assert said.token_logprobs[1 : len(tokens)] == pytest.approx(expected, abs=1e-3)
        assert said.text_offset == sorted(said.text_offset)
        assert answer.usage.completion_tokens == most
        best = table.max(-1).values.tolist()
        tops = said.top_logprobs[1 : len(tokens)]
        assert [max(top.values()) for top in tops] == pytest.approx(best, abs=1e-3)
        first, *rest = choice.prompt_logprobs
        assert first is None
        for token, logprob, entry in zip(tokens[1:], expected, rest, strict=True):
            assert entry[str(token)]["logprob"] == pytest.approx(logprob, abs=1e-3)
            assert {1, 2, 3} <= {each["rank"] for each in entry.values()}
    assert (await engine.report())["held"] == 0


async def test_the_library(engine: AsyncEngine, model: LlamaForCausalLM) -> None:
    async with engine:
        tokens = await engine.encode(PROMPT)
        found = await engine.prompt_logprobs(tokens, 1)
        table = reference(model, tokens)
        for row, token, entry in zip(table, tokens[1:], found[1:], strict=True):
            assert entry is not None
            assert entry.token_id == token
            assert entry.logprob == pytest.approx(float(row[token]), abs=1e-3)
            assert entry.top[0].logprob == pytest.approx(float(row.max()), abs=1e-3)
        assert await engine.prompt_logprobs(tokens[:1]) == [None]

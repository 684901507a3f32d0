"""Log-probabilities of prompts over HTTP: those of transformers, cached or not."""

import os
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
import torch
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine, InvalidRequestError, SamplingParams
from tests.models import random_llama
from tests.programs import until
from tests.test_placement import engine_process
from tests.torch_devices import KINDS, use_torch

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


async def test_log_probabilities_of_all_prompts_and_choices_have_one_bound(
    client: openai.AsyncOpenAI, engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = [5] * 10
    at_bound: list[tuple[str, dict[str, Any]]] = [
        ("prompt_logprobs", {"prompt": [prompt] * 2, "n": 2, "extra_body": {"prompt_logprobs": 4}}),
        ("logprobs", {"prompt": [prompt] * 4, "echo": True, "logprobs": 4}),
        ("prompt_logprobs", {"prompt": [prompt] * 20, "extra_body": {"prompt_logprobs": 0}}),
    ]
    for param, given in at_bound:
        asked = {"model": engine.model_name, "max_tokens": 1, **given}
        monkeypatch.setattr("pyengine.http.openai.completions.prompt_logprobs.MOST_TOLD", 200)
        await client.completions.create(**asked)
        monkeypatch.setattr("pyengine.http.openai.completions.prompt_logprobs.MOST_TOLD", 199)
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError, match="200 log-probabilities") as refused:
                await client.completions.create(**asked, stream=stream)
            assert refused.value.param == param


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


async def test_a_stream_tells_of_the_prompt_first(
    client: openai.AsyncOpenAI, engine: AsyncEngine
) -> None:
    for most in (0, 5):
        given: Any = {
            "model": engine.model_name, "prompt": [PROMPT, "Another one."], "n": 2, "echo": True,
            "logprobs": 2, "max_tokens": most, "temperature": 0,
            "extra_body": {"ignore_eos": True, "prompt_logprobs": 3},
        }  # fmt: skip
        whole = await client.completions.create(**given)
        parts: dict[int, list[Any]] = {}
        async for chunk in await client.completions.create(**given, stream=True):
            for choice in chunk.choices:
                parts.setdefault(choice.index, []).append(choice)
        for wanted in whole.choices:
            first, *_ = chunks = parts[wanted.index]
            assert first.prompt_logprobs == wanted.prompt_logprobs
            told = [chunk.logprobs for chunk in chunks if chunk.logprobs is not None]
            for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
                joined = [entry for each in told for entry in getattr(each, name)]
                assert joined == getattr(wanted.logprobs, name), name


async def test_in_company_after_a_preemption_and_beside_a_cached_prefix() -> None:
    """The same numbers, whatever else the engine does."""
    params = SamplingParams(max_tokens=150, temperature=0.7, seed=3, ignore_eos=True)
    prompts = [f"{n} bottles. {PROMPT[: 20 + 20 * (n % 4)]}" for n in range(16)]
    alone = []
    async with AsyncEngine(prefill_chunk=6) as engine:
        for prompt in prompts:
            alone.append(await engine.generate(prompt, params, prompt_logprobs=4))
            await engine.reset_prefix_cache()
    tight: Any = {"num_blocks": 40, "block_size": 8, "max_tokens_per_step": 16}
    async with AsyncEngine(prefill_chunk=6, **tight) as engine:
        together = [engine.generate(prompt, params, prompt_logprobs=4) for prompt in prompts]
        for one, other in zip(alone, together, strict=True):
            answer = await other
            assert answer.prompt_logprobs == one.prompt_logprobs
            assert answer.token_ids == one.token_ids
        assert (await engine.report())["preemptions"] > 0
        for _ in range(2):  # the cache knows the prompt the second time
            again = await engine.generate(prompts[2], params, prompt_logprobs=4)
            assert again.prompt_logprobs == alone[2].prompt_logprobs
        # What lies before the first that is wanted comes from the cache.
        tokens = await engine.encode(prompts[2])
        before = (await engine.report())["cached_tokens"]
        late = await engine.prompt_logprobs(tokens, 4, len(tokens) - 3)
        assert (await engine.report())["cached_tokens"] > before
        assert late[:-2] == [None] * (len(tokens) - 2)
        assert again.prompt_logprobs is not None
        assert late[-2:] == again.prompt_logprobs[-2:]


@pytest.mark.slow
async def test_after_the_engine_was_killed() -> None:
    prompt = PROMPT * 40
    async with AsyncEngine(prefill_chunk=8) as engine:
        wanted = await engine.prompt_logprobs(prompt, 3)
    async with AsyncEngine(prefill_chunk=8, placement="process") as engine:
        asked = engine.generate(prompt, SamplingParams(max_tokens=0), prompt_logprobs=3)
        await until(lambda: any(asked.prompt_logprobs() or ()))
        os.kill(engine_process(engine), signal.SIGKILL)
        answer = await asked
        assert (answer.text, answer.finish_reason) == ("", "length")
        assert answer.prompt_logprobs == wanted


async def test_on_the_simulated_device() -> None:
    """It scores every token of its vocabulary alike."""
    async with AsyncEngine(device="simulated", simulated_step_ms=0.0, prefill_chunk=8) as engine:
        found = await engine.prompt_logprobs(PROMPT, 2)
        assert len({entry.logprob for entry in found if entry is not None}) == 1
        assert all(len(entry.top) == 2 for entry in found if entry is not None)


@pytest.mark.parametrize("kind", KINDS)
async def test_under_torch(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with AsyncEngine() as engine:
        wanted = await engine.prompt_logprobs(PROMPT, 3)
    use_torch(monkeypatch, kind)
    params = SamplingParams(max_tokens=9, temperature=0, ignore_eos=True)
    async with AsyncEngine(prefill_chunk=8) as engine:
        beside = engine.generate("Once upon a time", params)
        answers = [
            await engine.generate(PROMPT, params, prompt_logprobs=3),
            await engine.generate(PROMPT, params, prompt_logprobs=3),  # the cache knows it
        ]
        await beside
    for answer in answers:
        assert answer.prompt_logprobs is not None
        for one, other in zip(wanted[1:], answer.prompt_logprobs[1:], strict=True):
            assert one is not None
            assert other is not None
            assert one.token_id == other.token_id
            assert one.logprob == pytest.approx(other.logprob, abs=1e-3)
            assert [top.logprob for top in one.top] == pytest.approx(
                [top.logprob for top in other.top], abs=1e-3
            )


async def test_wrong_requests_are_refused(engine: AsyncEngine) -> None:
    async with engine:
        refused: list[dict[str, Any]] = [
            {"prompt_logprobs": 21},
            {"prompt_logprobs": True},
            {"prompt_logprobs_from": 1},
            {"prompt_logprobs": 0, "prompt_logprobs_from": 10_000},
        ]
        for options in refused:
            with pytest.raises(InvalidRequestError) as caught:
                engine.generate(PROMPT, **options)
            assert caught.value.param == list(options)[-1]


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

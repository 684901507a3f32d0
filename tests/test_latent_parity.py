"""Engines on models with latents: transformers' tokens whole, in chunks, hit, preempted, drafted,
in company, on ranks, and in torch; the same bits wherever a token was computed.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyengine import AsyncEngine, Completion, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from pyengine.errors import InvalidRequestError, ModelLoadError
from pyengine.model.spec import describe
from pyengine.settings.config import EngineConfig
from tests.distributed.thread_ranks import thread_runner
from tests.model.latents import LATENTS
from tests.models import greedy, mixed_prompts, random_model
from tests.torch_devices import use_torch

TOKENS = 24
QUICK = "deepseek-v2-lite"
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "threads": 2,
    "max_sequences": 16,
    "kv_cache_mib": 16,
    "speculation": (),
}
RULES = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=2)
PROMPTS = mixed_prompts()


def families(*quick: str) -> list[Any]:
    """All of them as parameters of a test, slow but for the ``quick`` ones."""
    slow = pytest.mark.slow
    return [pytest.param(name, marks=() if name in quick else slow) for name in LATENTS]


def make(folder: Path, name: str) -> Any:
    """A random model in ``folder``, as transformers has it."""
    kind, own = LATENTS[name]
    return random_model(folder, kind, **own)


async def ask(
    engine: AsyncEngine,
    prompts: Sequence[list[int]],
    prediction: Sequence[list[int]] | None = None,
) -> list[Completion]:
    """The answers to all prompts at once, of which ``prediction`` predicts each."""
    given: Sequence[list[int] | None] = prediction or [None] * len(prompts)
    asked = [
        engine.generate(prompt, RULES, prediction=guess)
        for prompt, guess in zip(prompts, given, strict=True)
    ]
    return list(await asyncio.gather(*asked))


def tokens(answers: Sequence[Completion]) -> list[list[int]]:
    return [answer.token_ids for answer in answers]


def bits(answers: Sequence[Completion]) -> list[list[tuple[int, float, list[tuple[int, float]]]]]:
    """Tokens and log-probabilities, exactly."""
    return [
        [
            (entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
            for entry in answer.logprobs or ()
        ]
        for answer in answers
    ]


async def check(folder: Path, expected: list[list[int]]) -> None:
    """That an engine of ``folder`` answers so, in each of the ways that it may compute."""
    async with AsyncEngine(folder, **SETTINGS) as engine:
        assert tokens(await ask(engine, PROMPTS)) == expected
        assert tokens(await ask(engine, PROMPTS)) == expected
        assert (await engine.report())["prefix_hits"] > 0
    async with AsyncEngine(folder, **SETTINGS, prefill_chunk=8) as engine:
        assert tokens(await ask(engine, PROMPTS)) == expected
    drafts = SETTINGS | {"speculation": ("prediction",), "max_draft": 3, "_adaptive_drafts": False}
    guesses = [[*each[:9], 0, *each[10:]] for each in expected]
    async with AsyncEngine(folder, **drafts) as engine:
        assert tokens(await ask(engine, PROMPTS, prediction=guesses)) == expected
        report = await engine.report()
    assert report["drafted_prediction"] > report["accepted_prediction"] > 0


@pytest.mark.parametrize("name", families(QUICK))
async def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    await check(tmp_path, greedy(make(tmp_path, name), PROMPTS, TOKENS))


@pytest.mark.parametrize("name", families())
async def test_so_they_do_in_torch(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(make(tmp_path, name), PROMPTS, TOKENS)
    use_torch(monkeypatch)
    await check(tmp_path, expected)


async def test_two_ranks_divide_heads_and_repeat_latents(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = greedy(make(tmp_path, QUICK), PROMPTS, TOKENS)
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)
    settings = SETTINGS | {"tensor_parallel": 2, "threads": 1}
    async with AsyncEngine(tmp_path, **settings) as engine:
        assert tokens(await ask(engine, PROMPTS)) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
async def test_bits_are_the_same_cold_cached_in_chunks_alone_and_in_company(
    dtype: str, tmp_path: Path
) -> None:
    make(tmp_path, "deepseek-v3")
    settings = SETTINGS | {"dtype": dtype}
    async with AsyncEngine(tmp_path, **settings, prefix_cache=False) as engine:
        alone = [(await ask(engine, [prompt]))[0] for prompt in PROMPTS]
    async with AsyncEngine(tmp_path, **settings, prefill_chunk=8) as engine:
        together = await ask(engine, PROMPTS)
        cached = await ask(engine, PROMPTS)
        assert (await engine.report())["prefix_hits"] > 0
    assert bits(alone) == bits(together) == bits(cached)


@pytest.mark.slow
async def test_a_preempted_request_keeps_its_bits(tmp_path: Path) -> None:
    make(tmp_path, "glm 4.7 flash")
    rules = SamplingParams(temperature=0, max_tokens=112, ignore_eos=True, logprobs=2)
    found = []
    for blocks in (256, 32):
        settings = SETTINGS | {"kv_cache_mib": None, "num_blocks": blocks}
        async with AsyncEngine(tmp_path, **settings) as engine:
            asked = [engine.generate(prompt, rules) for prompt in PROMPTS]
            found.append(bits(list(await asyncio.gather(*asked))))
            report = await engine.report()
    assert report["preemptions"] > 0
    assert found[0] == found[1]


async def test_prompts_have_the_log_probabilities_that_transformers_gives(tmp_path: Path) -> None:
    model, prompt = make(tmp_path, QUICK), PROMPTS[3]
    with torch.inference_mode():
        scores = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
    expected = [float(scores[at, token]) for at, token in enumerate(prompt[1:])]
    async with AsyncEngine(tmp_path, **SETTINGS, prefill_chunk=8) as engine:
        answer = await engine.generate(prompt, RULES, prompt_logprobs=0)
    assert answer.prompt_logprobs is not None
    found = [each.logprob for each in answer.prompt_logprobs[1:] if each is not None]
    assert found == pytest.approx(expected, abs=2e-4)


async def test_embeddings_are_transformers_last_hidden_states(tmp_path: Path) -> None:
    model, prompt = make(tmp_path, QUICK), PROMPTS[4]
    with torch.inference_mode():
        states = model.model(torch.tensor([prompt])).last_hidden_state[0, -1]
    expected = torch.nn.functional.normalize(states, dim=0)
    async with AsyncEngine(tmp_path, **SETTINGS) as engine:
        (found,) = await engine.embed([prompt])
    torch.testing.assert_close(torch.tensor(found.vector), expected, atol=1e-4, rtol=1e-4)


async def prompt_logprobs(folder: Path, **config: Any) -> list[float]:
    async with AsyncEngine(folder, **SETTINGS, **config) as engine:
        answer = await engine.generate(PROMPTS[4], RULES, prompt_logprobs=0)
    assert answer.prompt_logprobs is not None
    return [each.logprob for each in answer.prompt_logprobs if each is not None]


@pytest.mark.slow
@pytest.mark.parametrize(("quantization", "least"), [("int8", 0.99), ("int4", 0.8)])
async def test_quantized_at_load_answers_alike_alone_and_in_company(
    quantization: str, least: float, tmp_path: Path
) -> None:
    make(tmp_path, "youtu")
    settings = SETTINGS | {"quantization": quantization, "prefix_cache": False}
    async with AsyncEngine(tmp_path, **settings) as engine:
        alone = [(await ask(engine, [prompt]))[0] for prompt in PROMPTS]
        assert bits(await ask(engine, PROMPTS)) == bits(alone)
    dense = await prompt_logprobs(tmp_path)
    rounded = await prompt_logprobs(tmp_path, quantization=quantization)
    assert np.corrcoef(dense, rounded)[0, 1] > least


@pytest.mark.parametrize(("ranks", "bytes_of_all"), [(1, 1152), (2, 2 * 1152)])
def test_a_token_of_v2_lite_takes_1152_bytes_a_layer(
    ranks: int, bytes_of_all: int, tmp_path: Path
) -> None:
    """In bfloat16, on each rank: latents are not divided."""
    kind, own = LATENTS[QUICK]
    sizes = {"kv_lora_rank": 512, "qk_rope_head_dim": 64}
    kind(vocab_size=300, **own | sizes).save_pretrained(tmp_path)
    config = EngineConfig(
        model=str(tmp_path), device="cpu", dtype="bfloat16", tensor_parallel=ranks
    )
    info = describe(config).info
    assert info.block_bytes == bytes_of_all * info.block_size * own["num_hidden_layers"]


async def test_an_index_of_keys_bounds_the_context(tmp_path: Path) -> None:
    kind, own = LATENTS["deepseek-v3.2"]
    random_model(tmp_path, kind, **own | {"index_topk": 64})
    assert describe(EngineConfig(model=str(tmp_path), device="cpu")).info.max_context == 64
    async with AsyncEngine(tmp_path, **SETTINGS) as engine:
        with pytest.raises(InvalidRequestError, match="64"):
            await engine.generate([1] * 65, RULES)


def test_a_longer_index_of_keys_is_refused_by_its_name(tmp_path: Path) -> None:
    kind, own = LATENTS["deepseek-v3"]
    kind(vocab_size=300, architectures=["DeepseekV4ForCausalLM"], **own).save_pretrained(tmp_path)
    with pytest.raises(ModelLoadError, match="an index of keys"):
        describe(EngineConfig(model=str(tmp_path), device="cpu"))

"""Models whose layers have states, over HTTP: choices, prompts' log-probabilities, clients that
leave, vectors, an engine that sleeps, a cache of few states, and the snapshots of ``/metrics``.
"""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ConfigError
from pyengine.model.spec import describe
from pyengine.settings.config import EngineConfig
from tests.model.hybrids import HYBRIDS
from tests.models import mixed_prompts, random_model

PROMPTS = mixed_prompts()
PROMPT = PROMPTS[5]
RULES = SamplingParams(temperature=0, max_tokens=24, ignore_eos=True, logprobs=0)
SETTINGS: dict[str, Any] = {"device": "cpu", "threads": 2, "speculation": (), "max_sequences": 8}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hybrid")


@pytest.fixture(scope="module")
def model(folder: Path) -> Any:
    """A Qwen3-Next, three layers of states to one of attention."""
    kind, own = HYBRIDS["qwen3-next"]
    return random_model(folder, kind, **own)


@pytest.fixture
def engine(folder: Path, model: Any) -> AsyncEngine:
    return AsyncEngine(folder, **SETTINGS, kv_cache_mib=16, prefill_chunk=32)


async def leaves_nothing(engine: AsyncEngine) -> dict[str, int]:
    report = await engine.report()
    while report["running"] + report["waiting"]:
        report = await engine.report()
    assert report["held"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]
    return report


async def test_choices_of_a_prompt_are_those_of_requests_of_their_own(
    client: openai.AsyncOpenAI, engine: AsyncEngine
) -> None:
    given: Any = {
        "model": engine.model_name, "prompt": PROMPT, "max_tokens": 16, "temperature": 0.9,
        "seed": 5, "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    both = await client.completions.create(**given, n=3)
    texts = [choice.text for choice in both.choices]
    assert len(set(texts)) == 3
    report = await leaves_nothing(engine)
    # The second and the third begin from the snapshot at the end of the prompt.
    assert report["snapshot_hits"] == 2
    assert report["prefix_hits"] == 2 * ((len(PROMPT) - 1) // 16 * 16)
    again = await client.completions.create(**given, n=3)
    assert [choice.text for choice in again.choices] == texts
    first = await client.completions.create(**given)
    assert first.choices[0].text == texts[0]


async def test_log_probabilities_of_a_prompt_are_transformers_cached_or_not(
    client: openai.AsyncOpenAI, engine: AsyncEngine, model: Any
) -> None:
    with torch.inference_mode():
        table = model(torch.tensor([PROMPT]), use_cache=False).logits[0, :-1].log_softmax(-1)
    expected = [float(row[token]) for row, token in zip(table, PROMPT[1:], strict=True)]
    told = []
    for most in (0, 8, 8):
        answer: Any = await client.completions.create(
            model=engine.model_name, prompt=PROMPT, max_tokens=most, temperature=0,
            extra_body={"ignore_eos": True, "prompt_logprobs": 0},
        )  # fmt: skip
        first, *rest = answer.choices[0].prompt_logprobs
        assert first is None
        told.append(
            [entry[str(token)]["logprob"] for token, entry in zip(PROMPT[1:], rest, strict=True)]
        )
    assert told[0] == told[1] == told[2]
    assert told[0] == pytest.approx(expected, abs=1e-4)
    await leaves_nothing(engine)


async def test_clients_that_leave_in_a_prompt_or_an_answer_leave_no_state(
    client: openai.AsyncOpenAI, engine: AsyncEngine
) -> None:
    given: Any = {
        "model": engine.model_name, "max_tokens": 300, "temperature": 0, "stream": True,
        "extra_body": {"ignore_eos": True},
    }  # fmt: skip
    wanted = (await engine.generate(PROMPT, RULES)).token_ids
    for prompt in PROMPTS:
        stream = await client.completions.create(prompt=prompt, **given)
        async for _ in stream:
            break
        await stream.close()
    asked = [
        asyncio.create_task(client.completions.create(prompt=prompt * 2, **given))
        for prompt in PROMPTS
    ]
    while not (await engine.report())["running"]:
        pass
    for each in asked:
        each.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    await leaves_nothing(engine)
    assert (await engine.generate(PROMPT, RULES)).token_ids == wanted


async def test_metrics_count_snapshots(http: httpx.AsyncClient, engine: AsyncEngine) -> None:
    async def values() -> dict[str, float]:
        lines = (await http.get("/metrics")).text.splitlines()
        names = [line.split("{")[0].split(" ")[0] for line in lines]
        told = zip(names, lines, strict=True)
        return {
            name.removeprefix("pyengine_kv_snapshot"): float(line.split()[-1])
            for name, line in told
            if name.startswith("pyengine_kv_snapshot")
        }

    assert await values() == {"s": 0, "_bytes": 0, "s_taken_total": 0, "_hits_total": 0}
    for _ in range(2):
        await engine.generate(PROMPT, RULES)
    told = await values()
    assert told["s"] == told["s_taken_total"] > 0
    assert told["_hits_total"] == 1
    info = describe(engine.config).info
    assert told["_bytes"] == told["s"] * info.state_pages * info.block_bytes
    await engine.reset_prefix_cache()
    assert await values() == told | {"s": 0, "_bytes": 0}


@pytest.mark.parametrize("small", [False, True])
async def test_vectors_are_transformers(small: bool, folder: Path, model: Any) -> None:
    """Of the last hidden state, which is of the last token's; twice, from snapshots then."""
    expected = []
    for prompt in PROMPTS:
        with torch.inference_mode():
            state = model.model(torch.tensor([prompt]), use_cache=False).last_hidden_state[0, -1]
        expected.append((state / state.norm()).numpy())
    cache: dict[str, Any] = {"num_blocks": 40} if small else {"kv_cache_mib": 16}
    async with AsyncEngine(folder, **SETTINGS | cache, prefill_chunk=24) as engine:
        for _ in range(2):
            found = [each.vector for each in await engine.embed(PROMPTS)]
            np.testing.assert_allclose(found, expected, atol=2e-5)
        report = await leaves_nothing(engine)
        assert small or report["snapshot_hits"] > 0  # a small cache may keep none until then


async def test_few_states_serve_fewer_sequences_at_once(folder: Path, model: Any) -> None:
    """As many as the cache has room for; the others wait, and one that fits none is an error."""
    info = describe(EngineConfig(model=str(folder), **SETTINGS)).info
    async with AsyncEngine(folder, **SETTINGS, kv_cache_mib=16) as engine:
        wanted = [(await engine.generate(prompt, RULES)).token_ids for prompt in PROMPTS]
    one = info.state_pages + 1
    blocks = 3 * one + 30
    running = 0
    async with AsyncEngine(folder, **SETTINGS, num_blocks=blocks) as engine:
        asked = [engine.generate(prompt, RULES) for prompt in PROMPTS]
        report = await engine.report()
        while report["running"] + report["waiting"]:
            running = max(running, report["running"])
            report = await engine.report()
        assert [(await each).token_ids for each in asked] == wanted
        await leaves_nothing(engine)
    assert 1 <= running <= blocks // one
    with pytest.raises(ConfigError, match=f"its state takes {info.state_pages} of"):
        async with AsyncEngine(folder, **SETTINGS, num_blocks=one - 1):
            pass


@pytest.mark.slow
async def test_an_engine_that_sleeps_goes_on_bit_for_bit(folder: Path, model: Any) -> None:
    rules = SamplingParams(temperature=0.8, seed=2, max_tokens=300, ignore_eos=True, logprobs=0)

    def bits(answer: Any) -> list[tuple[int, float]]:
        return [(entry.token_id, entry.logprob) for entry in answer.logprobs]

    async with AsyncEngine(folder, **SETTINGS, kv_cache_mib=16) as engine:
        wanted = [bits(await engine.generate(prompt, rules)) for prompt in PROMPTS[:4]]
    config = SETTINGS | {"kv_cache_mib": 16, "placement": "process"}
    async with AsyncEngine(folder, **config) as engine:
        asked = [engine.generate(prompt, rules) for prompt in PROMPTS[:4]]
        for each in asked:
            async for update in each:
                if len(update.token_ids):
                    break
        await engine.sleep()
        assert engine.asleep
        await engine.wake_up()
        assert [bits(await each) for each in asked] == wanted
        await leaves_nothing(engine)

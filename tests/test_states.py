"""Models whose layers have states, through an engine on the CPU: the answers are transformers', and
the same bits whether the prompt was cached, cut into chunks, alone, preempted or drafted for.
"""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from pyengine import AsyncEngine, Completion, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from tests.distributed.thread_ranks import thread_runner
from tests.model.hybrids import HYBRIDS
from tests.models import greedy, mixed_prompts, random_llama, random_model
from tests.torch_devices import use_torch

TOKENS = 40
MANY = 112
"""More than admission keeps room for (64), so that a small cache preempts."""
SETTINGS: dict[str, Any] = {
    "device": "cpu",
    "threads": 2,
    "max_sequences": 8,
    "kv_cache_mib": 16,
    "speculation": (),
}
RULES = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True, logprobs=2)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[list[int]]]:
    """A Qwen3-Next, three layers of states to one of attention, and transformers' answers."""
    folder = tmp_path_factory.mktemp("hybrid")
    kind, own = HYBRIDS["qwen3-next"]
    model = random_model(folder, kind, **own)
    return folder, greedy(model, mixed_prompts(), TOKENS)


async def ask(
    engine: AsyncEngine, prompts: Sequence[list[int]], rules: SamplingParams = RULES
) -> list[Completion]:
    return list(await asyncio.gather(*(engine.generate(prompt, rules) for prompt in prompts)))


def bits(answers: Sequence[Completion]) -> list[list[tuple[int, float, list[tuple[int, float]]]]]:
    """Tokens and log-probabilities, exactly."""
    return [
        [
            (entry.token_id, entry.logprob, [(top.token_id, top.logprob) for top in entry.top])
            for entry in answer.logprobs or ()
        ]
        for answer in answers
    ]


@torch.inference_mode()
def greedy_without_cache(model: Any, prompts: list[list[int]], count: int) -> list[list[int]]:
    """As :func:`tests.models.greedy`: not all of transformers' caches of states go on rightly."""
    answers = []
    for prompt in prompts:
        tokens = list(prompt)
        for _ in range(count):
            output = model(torch.tensor([tokens]), use_cache=False)
            tokens.append(int(output.logits[0, -1].argmax()))
        answers.append(tokens[len(prompt) :])
    return answers


async def leaves_nothing(engine: AsyncEngine) -> dict[str, int]:
    report = await engine.report()
    assert report["held"] == report["running"] == 0
    assert report["free"] + report["cached"] == report["num_blocks"]
    return report


@pytest.mark.parametrize(
    ("chunk", "prefix_cache"),
    [
        (8, True),
        pytest.param(None, True, marks=pytest.mark.slow),
        pytest.param(8, False, marks=pytest.mark.slow),
        (None, False),
    ],
)
async def test_greedy_tokens_are_transformers(
    chunk: int | None, prefix_cache: bool, hybrid: tuple[Path, list[list[int]]]
) -> None:
    folder, expected = hybrid
    config = SETTINGS | {"prefill_chunk": chunk, "prefix_cache": prefix_cache}
    async with AsyncEngine(folder, **config) as engine:
        answers = await ask(engine, mixed_prompts())
        await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == expected


# The quick ones are of a kind each: a delta rule, a short convolution, a sum that decays.
FAMILIES = [
    name
    if name in ("qwen3.5", "lfm2", "granite 4 h")
    else pytest.param(name, marks=pytest.mark.slow)
    for name in HYBRIDS
]


@pytest.mark.parametrize("name", FAMILIES)
async def test_every_family_says_what_transformers_says(name: str, tmp_path: Path) -> None:
    kind, own = HYBRIDS[name]
    expected = greedy_without_cache(random_model(tmp_path, kind, **own), mixed_prompts(), 10)
    rules = replace(RULES, max_tokens=10)
    async with AsyncEngine(tmp_path, **SETTINGS, prefill_chunk=24) as engine:
        answers = await ask(engine, mixed_prompts(), rules)
        again = await ask(engine, mixed_prompts(), rules)
        report = await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == expected
    assert bits(again) == bits(answers)
    assert report["prefix_hits"] > 0


@pytest.mark.parametrize("runner", ["two ranks", "torch"])
async def test_other_runners_say_so_too(
    runner: str, hybrid: tuple[Path, list[list[int]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, expected = hybrid
    config = SETTINGS | {"prefill_chunk": 16}
    if runner == "torch":
        use_torch(monkeypatch)
    else:
        monkeypatch.setattr(ParallelRunner, "start", thread_runner)
        config |= {"tensor_parallel": 2, "threads": 1}
    async with AsyncEngine(folder, **config) as engine:
        answers = await ask(engine, mixed_prompts())
        again = await ask(engine, mixed_prompts())
        await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == expected
    assert [answer.token_ids for answer in again] == expected


async def test_bfloat16_has_the_same_bits_cached_and_in_company(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, _ = hybrid
    config = SETTINGS | {"dtype": "bfloat16", "prefill_chunk": 16}
    async with AsyncEngine(folder, **config, prefix_cache=False) as engine:
        cold = [(await ask(engine, [prompt]))[0] for prompt in mixed_prompts()]
    async with AsyncEngine(folder, **config) as engine:
        together = await ask(engine, mixed_prompts())
        cached = await ask(engine, mixed_prompts())
    assert bits(cold) == bits(together) == bits(cached)


async def test_cached_answer_is_the_cold_one_bit_for_bit(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, _ = hybrid
    turns = [prompt * 2 for prompt in mixed_prompts()]
    async with AsyncEngine(folder, **SETTINGS, prefix_cache=False) as engine:
        cold = await ask(engine, [*mixed_prompts(), *turns])
    async with AsyncEngine(folder, **SETTINGS) as engine:
        first = await ask(engine, mixed_prompts())
        before = await leaves_nothing(engine)
        again = await ask(engine, mixed_prompts())
        after = await leaves_nothing(engine)
        longer = await ask(engine, turns)
        end = await leaves_nothing(engine)
    count = len(first)
    assert bits(first) == bits(again) == bits(cold[:count])
    assert bits(longer) == bits(cold[count:])
    # Each repeated prompt begins at the last border of blocks before its end.
    hit = after["prefix_hits"] - before["prefix_hits"]
    assert hit == sum((len(prompt) - 1) // 16 * 16 for prompt in mixed_prompts())
    assert end["prefix_hits"] > after["prefix_hits"]


async def test_answer_alone_is_the_one_in_company_bit_for_bit(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, _ = hybrid
    config = SETTINGS | {"prefix_cache": False}
    async with AsyncEngine(folder, **config, max_tokens_per_step=48) as engine:
        together = await ask(engine, mixed_prompts())
        alone = [(await ask(engine, [prompt]))[0] for prompt in mixed_prompts()]
    assert bits(alone) == bits(together)


async def test_preempted_sequences_go_on_bit_for_bit(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, _ = hybrid
    rules = replace(RULES, max_tokens=MANY)
    async with AsyncEngine(folder, **SETTINGS) as engine:
        room = await ask(engine, mixed_prompts(), rules)
    config = SETTINGS | {"kv_cache_mib": None, "num_blocks": 40}
    async with AsyncEngine(folder, **config) as engine:
        little = await ask(engine, mixed_prompts(), rules)
        report = await leaves_nothing(engine)
    assert report["preemptions"] > 0
    assert bits(little) == bits(room)


@pytest.mark.parametrize("chunk", [None, 8])
async def test_drafts_change_no_bit(chunk: int | None, tmp_path: Path) -> None:
    """Of a model that repeats itself, with right drafts and wrong ones."""
    kind, own = HYBRIDS["qwen3-next"]
    random_model(tmp_path, kind, **own | {"initializer_range": 0.03})
    rules = replace(RULES, max_tokens=MANY)
    async with AsyncEngine(tmp_path, **SETTINGS) as engine:
        plain = await ask(engine, mixed_prompts(), rules)
    drafting = SETTINGS | {"speculation": ("ngram",), "_adaptive_drafts": False, "max_draft": 4}
    async with AsyncEngine(tmp_path, **drafting, prefill_chunk=chunk) as engine:
        drafted = await ask(engine, mixed_prompts(), rules)
        again = await ask(engine, mixed_prompts(), rules)
        report = await leaves_nothing(engine)
    assert bits(drafted) == bits(again) == bits(plain)
    assert report["drafted_ngram"] > report["accepted_ngram"] > 0


async def test_wrong_drafts_of_a_model_change_no_bit(
    hybrid: tuple[Path, list[list[int]]], tmp_path: Path
) -> None:
    """A model without states drafts in the pages of one that has some."""
    folder, expected = hybrid
    random_llama(tmp_path)
    drafting = SETTINGS | {
        "draft_model": str(tmp_path),
        "speculation": ("draft_model",),
        "_adaptive_drafts": False,
        "max_draft": 3,
    }
    async with AsyncEngine(folder, **drafting, prefill_chunk=16) as engine:
        answers = await ask(engine, mixed_prompts())
        again = await ask(engine, mixed_prompts())
        report = await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == expected
    assert bits(again) == bits(answers)
    assert report["drafted_draft_model"] > report["accepted_draft_model"]


async def test_two_answers_to_one_prompt_begin_at_one_snapshot(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, expected = hybrid
    prompt = mixed_prompts()[5]
    async with AsyncEngine(folder, **SETTINGS) as engine:
        answers = await ask(engine, [prompt, prompt])
        report = await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == [expected[5]] * 2
    assert report["prefix_hits"] == (len(prompt) - 1) // 16 * 16


async def test_aborted_sequences_give_their_states_back(
    hybrid: tuple[Path, list[list[int]]],
) -> None:
    folder, expected = hybrid
    draws = np.random.default_rng(3)
    async with AsyncEngine(folder, **SETTINGS) as engine:
        for _ in range(12):
            generation = engine.generate(draws.integers(0, 256, 70).tolist(), RULES)
            async for update in generation:
                if len(update.token_ids):
                    break
            generation.abort()
        answers = await ask(engine, mixed_prompts())
        await leaves_nothing(engine)
    assert [answer.token_ids for answer in answers] == expected

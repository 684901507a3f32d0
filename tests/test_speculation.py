"""Speculation changes no token: with any proposer and draft length, every answer is the same."""

import asyncio
import itertools
import os
import signal
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import ConfigError, ModelLoadError, RequestAbortedError
from pyengine.settings.choices import Proposer
from tests.answers import assert_nothing_is_left
from tests.speculating import ALL, HOST, Answer, Question, ask, assert_same, questions
from tests.test_placement import engine_process
from tests.torch_devices import use_torch


@pytest.fixture(scope="module")
def asked() -> list[Question]:
    return questions()


@pytest.fixture(scope="module")
def without(asked: list[Question]) -> list[Answer]:
    """The answers with no speculation."""
    answers, report = asyncio.run(ask(asked, speculation=()))
    assert "drafted_ngram" not in report
    return answers


COMBINATIONS: list[tuple[Proposer, ...]] = [
    some for count in range(1, len(ALL) + 1) for some in itertools.combinations(ALL, count)
]
# One alone, and all together, show soon what every combination proves.
SLOW_COMBINATIONS = [
    some if some in (("ngram",), ALL) else pytest.param(some, marks=pytest.mark.slow)
    for some in COMBINATIONS
]


@pytest.mark.parametrize("proposers", SLOW_COMBINATIONS, ids="+".join)
async def test_answers_are_the_same_with_every_proposer(
    asked: list[Question], without: list[Answer], proposers: tuple[Proposer, ...]
) -> None:
    answers, report = await ask(asked, speculation=proposers, _adaptive_drafts=False)
    assert_same(answers, without)
    for source in proposers:
        assert report[f"drafted_{source}"] > 30, source


@pytest.mark.slow
@pytest.mark.parametrize("proposers", [HOST, ALL], ids="+".join)
async def test_however_much_is_drafted_the_answers_are_the_same(
    asked: list[Question], without: list[Answer], proposers: tuple[Proposer, ...]
) -> None:
    answers, _ = await ask(asked, speculation=proposers, _adaptive_drafts=True)
    assert_same(answers, without)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "proposers"),
    [("plain", HOST), ("overlapping", ALL)],
    ids=str,
)
async def test_so_it_is_on_torch_devices(
    asked: list[Question],
    without: list[Answer],
    kind: str,
    proposers: tuple[Proposer, ...],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both compute in float32, and no answer is near a tie: they are those of the CPU runner."""
    use_torch(monkeypatch, kind)
    answers, report = await ask(asked, speculation=proposers, _adaptive_drafts=False)
    for got, wanted in zip(answers, without, strict=True):
        assert (got.tokens, got.text, got.finish_reason) == (
            wanted.tokens,
            wanted.text,
            wanted.finish_reason,
        )
        told = [[entry.logprob for entry in one.logprobs or ()] for one in (got, wanted)]
        assert told[0] == pytest.approx(told[1], abs=1e-4)
    for source in proposers:
        assert report[f"drafted_{source}"] > 30, source


TIGHT: dict[str, dict[str, Any]] = {
    "chunked prefill": {"prefill_chunk": 5},
    "small steps": {"max_sequences": 6, "max_tokens_per_step": 11},
    "no prefix cache": {"prefix_cache": False},
    "one at a time": {"max_sequences": 1, "max_draft": 16},
}
SLOW_TIGHT = [
    pytest.param(config, id=name, marks=() if name == "small steps" else pytest.mark.slow)
    for name, config in TIGHT.items()
]


@pytest.mark.parametrize("config", SLOW_TIGHT)
async def test_whatever_steps_look_like_the_answers_are_the_same(
    asked: list[Question], config: dict[str, Any]
) -> None:
    some = [q for q in asked if len(q.prompt) < 600][:60]
    wanted, _ = await ask(some, speculation=(), **config)
    answers, report = await ask(some, speculation=ALL, _adaptive_drafts=False, **config)
    assert_same(answers, wanted)
    assert sum(report[f"drafted_{source}"] for source in ALL) > 20


def long(count: int) -> list[Question]:
    """Questions whose answers grow far beyond their prompts, every other one sampled."""
    return [
        Question(
            f"<|im_start|>user\nCount from {index} to 90<|im_end|>\n<|im_start|>assistant\n",
            SamplingParams(temperature=index % 2, seed=index, max_tokens=120, ignore_eos=True),
        )
        for index in range(count)
    ]


@pytest.mark.parametrize("adaptive", [pytest.param(True, marks=pytest.mark.slow), False])
async def test_preemption_in_a_tiny_cache_changes_nothing(adaptive: bool) -> None:
    config: dict[str, Any] = {"num_blocks": 40, "block_size": 8}
    wanted, report = await ask(long(12), speculation=(), **config)
    assert report["preemptions"] > 0
    answers, report = await ask(long(12), speculation=ALL, _adaptive_drafts=adaptive, **config)
    assert report["preemptions"] > 0
    assert_same(answers, wanted)


async def test_an_abort_ends_no_other_request() -> None:
    asked = long(8)
    wanted, _ = await ask(asked, speculation=())
    async with AsyncEngine(
        speculation=ALL, draft_model="demo", _adaptive_drafts=False, max_sequences=8
    ) as engine:
        generations = [engine.generate(q.prompt, q.params) for q in asked]
        for generation in generations[::2]:
            await anext(generation)
            generation.abort()
            with pytest.raises(RequestAbortedError):
                await generation
        answers = [await generation for generation in generations[1::2]]
        assert [tuple(a.token_ids) for a in answers] == [a.tokens for a in wanted[1::2]]
        await assert_nothing_is_left(engine)


@pytest.mark.slow
async def test_answers_go_on_over_kill_9_of_the_engine() -> None:
    """What drafts were under way is forgotten with the engine; the next one drafts anew."""
    asked = long(6)
    wanted, _ = await ask(asked, speculation=())
    async with AsyncEngine(
        speculation=ALL,
        draft_model="demo",
        _adaptive_drafts=False,
        max_sequences=8,
        placement="process",
    ) as engine:
        generations = [engine.generate(q.prompt, q.params, prediction=q.prompt) for q in asked]
        for generation in generations:
            while len(generation._actor.tokens) < 20:
                await anext(generation)
        before = engine_process(engine)
        os.kill(before, signal.SIGKILL)
        answers = [await generation for generation in generations]
        assert engine_process(engine) != before
        assert [tuple(a.token_ids) for a in answers] == [a.tokens for a in wanted]
        assert (await engine.report())["accepted_draft_model"] > 0
        await assert_nothing_is_left(engine)


async def test_impossible_proposer_is_refused_by_name() -> None:
    for config, said in (
        ({"speculation": ("draft_model",)}, "does not say which"),
        ({"speculation": ("ngram",), "draft_model": "demo"}, "does not name"),
        ({"speculation": ("oracle",)}, "oracle"),
        ({"device": "simulated", "draft_model": "demo"}, "simulated"),
    ):
        with pytest.raises(ConfigError, match=said):
            AsyncEngine(**config)
    with pytest.raises(ModelLoadError, match="draft model: there is no model folder"):
        async with AsyncEngine(draft_model="./nowhere"):
            pass

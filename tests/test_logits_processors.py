"""Logits processors: reached by name, exact, alone in their failures, the same in any company."""

import asyncio
import os
import signal
from typing import Any

import pytest

from pyengine import AsyncEngine, ConfigError, InvalidRequestError, SamplingParams
from pyengine.completion import Completion
from pyengine.errors import RequestFailedError
from tests import processors
from tests.test_placement import engine_process
from tests.torch_devices import KINDS, use_torch

PATHS = ("tests.processors:Bias", "tests.processors:NoRepeats", "tests.processors:fails")
BIAS = {45: 4.0, 60: -3.5, 71: 2.25}
PROMPT = "The cat sat on the mat. The cat sat on the"


def warm(seed: int = 5, tokens: int = 30, **rules: Any) -> SamplingParams:
    return SamplingParams(
        temperature=1.1, seed=seed, max_tokens=tokens, ignore_eos=True, logprobs=3, **rules
    )


def asks(**processors: dict[str, Any]) -> dict[str, Any]:
    return {"logits_processors": processors}


@pytest.mark.parametrize("kind", ["cpu", "bfloat16", *KINDS])
async def test_processor_equals_the_engines_own_rule(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bias by a processor is ``logit_bias``, with the same log-probabilities; on every runner."""
    settings: dict[str, Any] = {"dtype": "bfloat16"} if kind == "bfloat16" else {}
    if kind in KINDS:
        use_torch(monkeypatch, kind)
    async with AsyncEngine(logits_processors=[processors.Bias()], **settings) as engine:
        plain = await engine.generate(PROMPT, warm())
        bias = dict.fromkeys(plain.token_ids[:9], -6.0)
        asked = asks(Bias={"of": bias})
        own = await engine.generate(PROMPT, warm(logit_bias=bias, frequency_penalty=0.3))
        # Beside others that ask for nothing.
        others = [engine.generate(PROMPT, warm()) for _ in range(3)]
        processed = await engine.generate(PROMPT, warm(frequency_penalty=0.3), **asked)
        for other in others:
            assert (await other).token_ids == plain.token_ids
        assert processed.token_ids != plain.token_ids
        if kind != "bfloat16":  # there a logit is rounded once more
            assert processed.token_ids == own.token_ids
            pairs = zip(processed.logprobs or (), own.logprobs or (), strict=True)
            # torch's sums are others in other company.
            for ours, theirs in pairs:
                assert ours.logprob == pytest.approx(
                    theirs.logprob, abs=0 if kind == "cpu" else 1e-4
                )
        assert (await engine.report())["held"] == 0


async def test_processor_sees_prompt_answer_and_arguments() -> None:
    async with AsyncEngine(logits_processors=[processors.count_up, *PATHS]) as engine:
        tokens = await engine.encode(PROMPT)
        answer = await engine.generate(
            tokens, warm(tokens=2 * len(tokens)), logits_processors=["count_up"]
        )
        assert answer.token_ids == tokens * 2
        once = await engine.generate(PROMPT, warm(tokens=60), logits_processors=["no_repeats"])
        assert len(set(once.token_ids)) == 60
        both = await engine.generate(
            PROMPT, warm(tokens=60), **asks(no_repeats={}, Bias={"of": {45: 50.0}})
        )
        assert both.token_ids[0] == 45
        assert 45 not in both.token_ids[1:]


async def test_one_that_raises_fails_its_request_alone() -> None:
    async with AsyncEngine(logits_processors=PATHS, max_sequences=8) as engine:
        fine = [engine.generate(PROMPT, warm(seed), **asks(fails={})) for seed in range(3)]
        plain = engine.generate(PROMPT, warm())
        wrong = [engine.generate(PROMPT, warm(), **asks(fails={"after": at})) for at in (0, 1, 9)]
        for generation in wrong:
            with pytest.raises(RequestFailedError, match=r"'fails' raised ValueError: \d tokens"):
                await generation
        assert [generation.outcome.usage.completion_tokens for generation in wrong] == [0, 1, 9]
        for generation in fine:
            assert len((await generation).token_ids) == 30
        assert len((await plain).token_ids) == 30
        report = await engine.report()
        assert (report["held"], report["running"]) == (0, 0)


async def test_one_that_fails_on_batches_only_fails_them() -> None:
    def alone(logits: Any, rows: Any) -> None:
        if len(rows) > 1:
            raise ValueError("too many")

    async with AsyncEngine(logits_processors=[alone]) as engine:
        one = engine.generate(PROMPT, warm(), logits_processors=["alone"])
        assert len((await one).token_ids) == 30
        two = [engine.generate(PROMPT, warm(tokens=200), logits_processors=["alone"]) for _ in "ab"]
        for generation in two:
            with pytest.raises(RequestFailedError, match="on no row of it alone"):
                await generation


async def answers_of(engine: AsyncEngine, count: int, tokens: int) -> list[Completion]:
    """Of so many requests, of which every third has no processor."""
    asked: list[dict[str, Any]] = [asks(Bias={"of": BIAS}), asks(no_repeats={}), {}]
    generations = [
        engine.generate(f"Count from {at % 5} to 9.", warm(at, tokens), **asked[at % 3])
        for at in range(count)
    ]
    return [await generation for generation in generations]


async def test_the_same_seed_gives_the_same_tokens() -> None:
    """Alone, in a batch of 64, after preemption, with drafts."""
    async with AsyncEngine(logits_processors=PATHS, max_sequences=64) as engine:
        together = [answer.token_ids for answer in await answers_of(engine, 64, 24)]
    async with AsyncEngine(logits_processors=PATHS, max_sequences=1) as engine:
        wanted = [answer.token_ids for answer in await answers_of(engine, 18, 24)]
        assert wanted == together[:18]
    tight: dict[str, Any] = {"num_blocks": 40, "block_size": 8, "max_tokens_per_step": 16}
    async with AsyncEngine(logits_processors=PATHS) as engine:
        long = [answer.token_ids for answer in await answers_of(engine, 12, 150)]
    async with AsyncEngine(logits_processors=PATHS, **tight) as engine:
        answers = await answers_of(engine, 12, 150)
        assert (await engine.report())["preemptions"] > 0
        assert [answer.token_ids for answer in answers] == long
    sources: Any = ("ngram", "draft_model")
    async with AsyncEngine(
        logits_processors=PATHS, speculation=sources, draft_model="demo", _adaptive_drafts=False
    ) as engine:
        answers = await answers_of(engine, 18, 24)
        assert [answer.token_ids for answer in answers] == wanted
        # Rows of processors have no drafts, the others have.
        drafted = [
            answer.usage.accepted_drafts + answer.usage.rejected_drafts for answer in answers
        ]
        assert [at % 3 for at, drafts in enumerate(drafted) if drafts] == [2] * 6


@pytest.mark.slow
async def test_after_a_restart() -> None:
    """The next engine's process imports the processors, and sees what the answers were so far."""
    async with AsyncEngine(logits_processors=PATHS) as engine:
        wanted = await answers_of(engine, 9, 120)
    async with AsyncEngine(logits_processors=PATHS, placement="process", max_sequences=4) as engine:
        running = asyncio.create_task(answers_of(engine, 9, 120))
        first = engine.generate(PROMPT, warm(tokens=120), **asks(no_repeats={}))
        await anext(aiter(first))
        os.kill(engine_process(engine), signal.SIGKILL)
        for answer, expected in zip(await running, wanted, strict=True):
            assert answer.token_ids == expected.token_ids
        assert len(set((await first).token_ids)) == 120


async def test_wrong_processors_are_refused() -> None:
    broken: list[tuple[list[Any], str]] = [
        (["tests.processors:nothing"], "AttributeError"),
        (["nowhere.at:all"], "ModuleNotFoundError"),
        (["tests.processors:Broken"], "no luck"),
        ([processors.fails, "tests.processors:fails"], "two are called 'fails'"),
        ([object()], "no function"),
    ]
    for given, said in broken:
        with pytest.raises(ConfigError, match=said):
            async with AsyncEngine(logits_processors=given):
                pass
    bad: list[dict[str, Any]] = [
        {"placement": "process", "logits_processors": [processors.fails]},
        {"device": "simulated", "logits_processors": PATHS},
        {"tensor_parallel": 2, "logits_processors": PATHS},
    ]
    for settings in bad:
        with pytest.raises(ConfigError) as caught:
            AsyncEngine(**settings)
        assert caught.value.param == "logits_processors"
    async with AsyncEngine(logits_processors=PATHS) as engine:
        wrong: list[Any] = [{"bias": {}}, ["Bias", "bias"], {"Bias": 3}, {"Bias": {"of": object()}}]
        for each in wrong:
            with pytest.raises(InvalidRequestError, match="logits_processors"):
                engine.generate(PROMPT, logits_processors=each)

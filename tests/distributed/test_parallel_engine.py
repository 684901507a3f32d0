"""An engine of two ranks answers as one of one, whatever is asked; the ranks are threads here."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from pyengine import AsyncEngine, SamplingParams
from pyengine.distributed.parallel_runner import ParallelRunner
from pyengine.errors import ConfigError
from pyengine.grammar import json_schema, regex
from tests.distributed.thread_ranks import thread_runner
from tests.models import random_llama

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PENALISED = SamplingParams(
    temperature=0, max_tokens=24, frequency_penalty=0.5, logit_bias={40: 2.0}, logprobs=3
)
SCHEMA = json_schema(
    {
        "type": "object",
        "properties": {"name": {"type": "string"}, "likes": {"enum": ["tea", "trains"]}},
        "required": ["name", "likes"],
    }
)
PREFIX = "It was the best of times, it was the worst of times. " * 3


@pytest.fixture(autouse=True)
def ranks_are_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelRunner, "start", thread_runner)


async def answers(tensor_parallel: int, **config: Any) -> tuple[list[Any], dict[str, int]]:
    """Of plain, sampled, constrained and repeating questions, some of them with one prefix."""
    async with AsyncEngine(
        tensor_parallel=tensor_parallel, device="cpu", threads=1, **config
    ) as engine:
        assert engine.info.device.startswith("2 x cpu") == (tensor_parallel == 2)
        first = await engine.generate(PREFIX, GREEDY)
        rest = await asyncio.gather(
            engine.generate(PREFIX + "And then", GREEDY),
            engine.generate("one two three four one two three four one two", GREEDY),
            engine.generate("Once", SamplingParams(seed=7, temperature=0.9, max_tokens=20)),
            engine.generate("Answer:", SamplingParams(seed=3, max_tokens=80), grammar=SCHEMA),
            engine.generate("Say:", GREEDY, grammar=regex("(yes|no), [0-9]{3}")),
            engine.generate("Again and again and", PENALISED),
        )
        report = await engine.report()
        return [(answer.token_ids, answer.finish_reason) for answer in (first, *rest)], report


@pytest.mark.parametrize("drafts", [False, True])
async def test_the_demo_model(drafts: bool) -> None:
    config = (
        {"speculation": ("ngram", "forced"), "_adaptive_drafts": False}
        if drafts
        else {"speculation": ()}
    )
    alone, _ = await answers(1, **config)
    shared, report = await answers(2, **config)
    assert shared == alone
    assert report["prefix_hits"] > 0
    assert (report.get("drafted_ngram", 0) > 0) == drafts


@pytest.mark.parametrize("seed", [1, 2])
async def test_random_models(seed: int, tmp_path: Path) -> None:
    random_llama(tmp_path, seed=seed, tie_word_embeddings=seed == 1)
    model = {"model": str(tmp_path), "prefill_chunk": 16, "_adaptive_drafts": False}
    alone, _ = await answers(1, **model)
    shared, _ = await answers(2, **model)
    assert shared == alone


async def test_a_model_that_cannot_be_divided() -> None:
    with pytest.raises(ConfigError, match="2 kv heads of pyengine-demo cannot be divided by 4"):
        async with AsyncEngine(tensor_parallel=4, device="cpu"):
            pass


def test_a_draft_model_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'draft_model' .* 'tensor_parallel' of 2"):
        AsyncEngine(tensor_parallel=2, draft_model="demo")

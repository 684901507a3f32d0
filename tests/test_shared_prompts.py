"""Requests that come together and share a prompt compute it once, and answer as they do alone."""

import asyncio
import random
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from transformers import LlamaForCausalLM

from pyengine import AsyncEngine, SamplingParams
from pyengine.errors import RequestAbortedError
from pyengine.model.batch import StepBuffers
from pyengine.placement.thread import ThreadPlacement
from tests.models import greedy, random_llama

BLOCK = 16
TOKENS = 12
GREEDY = SamplingParams(temperature=0, max_tokens=TOKENS, ignore_eos=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("llama")
    return folder, random_llama(folder)


def some_tokens(count: int, seed: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randrange(256) for _ in range(count)]


class Steps:
    """What the steps of an engine compute, read from the buffers that its runner is given.

    Attributes:
        tokens: Of all steps.
        before_launch: Called with the step's number, from 1, on the scheduler's thread.
    """

    def __init__(self, engine: AsyncEngine) -> None:
        placement = engine.placement
        assert isinstance(placement, ThreadPlacement)
        assert placement.actors is not None
        runner = placement.actors.scheduler.runner
        self.tokens = self.steps = 0
        self.before_launch: Callable[[int], None] = lambda _: None
        self._launch = runner.launch
        runner.launch = self.launch  # type: ignore[method-assign]

    def launch(self, buffers: StepBuffers) -> Any:
        self.steps += 1
        self.before_launch(self.steps)
        self.tokens += buffers.num_tokens
        return self._launch(buffers)

    def prompt_tokens(self, answers: int) -> int:
        """Tokens of prompts, if so many answers are whole: all but the last of each is computed."""
        return self.tokens - answers * (TOKENS - 1)


@asynccontextmanager
async def counted(model: Path, **config: Any) -> AsyncIterator[tuple[AsyncEngine, Steps]]:
    """An engine whose steps are counted, and which leaves no request and no block held."""
    given: dict[str, Any] = {"max_sequences": 24, "kv_cache_mib": 16, "speculation": ()} | config
    async with AsyncEngine(model, **given) as engine:
        yield engine, Steps(engine)
        await engine.drained()
        while (report := await engine.report())["running"] + report["in_flight"]:
            pass
        assert report["free"] + report["cached"] == report["num_blocks"]


def once(prompts: list[list[int]]) -> int:
    """Prompt tokens to compute if every full block that several begin with is computed once."""
    blocks, rest = set(), 0
    for prompt in prompts:
        full = (len(prompt) - 1) // BLOCK
        blocks |= {tuple(prompt[: (at + 1) * BLOCK]) for at in range(full)}
        rest += len(prompt) - full * BLOCK
    return len(blocks) * BLOCK + rest


CHUNKS: dict[str, dict[str, Any]] = {
    "one-step": {},
    "several-steps": {"max_tokens_per_step": 64},
    "capped": {"prefill_chunk": 2 * BLOCK},
}


@pytest.mark.parametrize("chunks", CHUNKS)
async def test_eight_answers_to_one_prompt(
    llama: tuple[Path, LlamaForCausalLM], chunks: str
) -> None:
    folder, model = llama
    prompt = some_tokens(300, seed=1)
    async with counted(folder, **CHUNKS[chunks]) as (engine, steps):
        answers = await asyncio.gather(*(engine.generate(prompt, GREEDY) for _ in range(8)))
        report = await engine.report()
    assert [answer.token_ids for answer in answers] == greedy(model, [prompt], TOKENS) * 8
    rest = 300 - 288
    assert steps.prompt_tokens(8) == once([prompt] * 8) == 288 + 8 * rest
    assert report["prefix_queries"] - report["prefix_hits"] == steps.prompt_tokens(8)
    if chunks != "capped":
        assert [answer.usage.cached_tokens for answer in answers] == [0] + [288] * 7
        assert report["prompt_tokens"] - report["cached_tokens"] == steps.prompt_tokens(8)


async def test_samples_of_one_prompt_are_those_that_come_alone(
    llama: tuple[Path, LlamaForCausalLM],
) -> None:
    prompt = some_tokens(200, seed=2)
    various: list[dict[str, Any]] = [
        {}, {"presence_penalty": 1.0}, {"logprobs": 3}, {"repetition_penalty": 1.3},
    ]  # fmt: skip
    each = [
        SamplingParams(seed=seed, temperature=1.0, max_tokens=TOKENS, ignore_eos=True, **rules)
        for seed, rules in enumerate(various)
    ]
    async with counted(llama[0], prefix_cache=False) as (engine, steps):
        alone = [await engine.generate(prompt, params) for params in each]
        assert steps.prompt_tokens(4) == 4 * 200
    async with counted(llama[0]) as (engine, steps):
        together = await asyncio.gather(*(engine.generate(prompt, params) for params in each))
    assert [one.token_ids for one in together] == [one.token_ids for one in alone]
    assert [one.logprobs for one in together] == [one.logprobs for one in alone]
    assert steps.prompt_tokens(4) == once([prompt] * 4)


@pytest.mark.parametrize("chunks", CHUNKS)
async def test_a_burst_behind_one_system_prompt(
    llama: tuple[Path, LlamaForCausalLM], chunks: str
) -> None:
    folder, model = llama
    system = some_tokens(150, seed=3)
    # None of them ends with a full block, which only longer ones could share.
    prompts = [[*system, *some_tokens(7 + index % 3, seed=10 + index)] for index in range(20)]
    async with counted(folder, **CHUNKS[chunks]) as (engine, steps):
        answers = await asyncio.gather(*(engine.generate(prompt, GREEDY) for prompt in prompts))
    assert [answer.token_ids for answer in answers] == greedy(model, prompts, TOKENS)
    assert once(prompts) < 20 * 20 + 150
    if chunks != "capped":  # there a chunk of one may end within a block that another computes too
        assert steps.prompt_tokens(20) == once(prompts)


async def test_others_go_on_where_an_aborted_prompt_was(
    llama: tuple[Path, LlamaForCausalLM],
) -> None:
    folder, model = llama
    prompt = some_tokens(300, seed=4)
    loop, aborted = asyncio.get_running_loop(), threading.Event()
    async with counted(folder, max_tokens_per_step=64) as (engine, steps):

        def abort() -> None:
            first.abort()
            aborted.set()

        def before_launch(number: int) -> None:
            if number == 2:
                loop.call_soon_threadsafe(abort)
                assert aborted.wait(30)

        # Before the request, whose first steps may run before this thread goes on.
        steps.before_launch = before_launch
        first = engine.generate(prompt, GREEDY)
        others = [engine.generate(prompt, GREEDY) for _ in range(3)]
        answers = await asyncio.gather(*others)
        with pytest.raises(RequestAbortedError):
            await first
    assert [answer.token_ids for answer in answers] == greedy(model, [prompt], TOKENS) * 3
    # Two steps of 64 tokens for the first, and nothing of them again.
    assert steps.prompt_tokens(3) == once([prompt] * 3)

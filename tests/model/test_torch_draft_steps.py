"""Steps with a draft model on a GPU's runner, which works beside the CPU.

The model drafts for itself, so that drafts are wrong only where the test makes them so: then each
must have been drafted and verified in its place.
"""

import asyncio
from collections import defaultdict
from typing import Any

import msgspec
import pytest
import torch

from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import choice
from pyengine.kernels.hand_over import hand_over_reference
from pyengine.model.batch import StepBuffers
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.draft import TorchDraft
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.model.torch.step.in_flight import TorchStep
from pyengine.settings.config import EngineConfig
from tests.late_device import queue_kernels
from tests.model.test_draft import ITSELF, mixed, prompts
from tests.torch_devices import OverlappingQueue, RecordingCapturer

WRONG = 5
"""Every token that is a multiple of it is drafted wrongly."""


def spoil(
    last_token: torch.Tensor,
    sequence: torch.Tensor,
    places: torch.Tensor,
    token_ids: torch.Tensor,
    vocabulary: int,
) -> None:
    """Hand drafts over; the step gets some that are wrong."""
    hand_over_reference(last_token, sequence, places, token_ids, vocabulary)
    drafts = token_ids.index_select(0, places)
    token_ids.index_copy_(0, places, torch.where(drafts % WRONG == 0, drafts + 1, drafts))


class Seen:
    """What became of the drafts of all steps.

    Attributes:
        rows: By a request's seed its rows in turn: how many tokens each gave.
    """

    def __init__(self) -> None:
        self.right = self.wrong = self.unexpected = 0
        self.rows = defaultdict[int, list[int]](list)

    def look(self, buffers: StepBuffers) -> None:
        for row in range(buffers.num_sampled):
            drafts, count = int(buffers.device_drafts[row]), int(buffers.counts[row])
            self.rows[int(buffers.sampling["seed"][row])].append(count)
            self.right += count - 1
            if count <= drafts:
                token = buffers.tokens[buffers.logit_start[row] + count - 1]
                self.wrong += 1
                self.unexpected += int(token % WRONG != 0)

    def ends_within(self, seed: int, tokens: int) -> bool:
        """Whether an answer of so many tokens ends before the end of a row, some of whose tokens it
        has.
        """
        given = 0
        for count in self.rows[seed]:
            if given < tokens < given + count:
                return True
            given += count
        return False


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    queue_kernels(monkeypatch)

    def attention(spec: AttentionSpec) -> TritonAttention:
        return TritonAttention(spec, torch.device("cpu"), processors=8)

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        return start_on_cpu(
            config, attention=attention, capturer=RecordingCapturer(), queue=OverlappingQueue()
        )

    monkeypatch.setattr("pyengine.engine.settled", lambda config: config)
    monkeypatch.setattr("pyengine.engine.load_runner", load)
    monkeypatch.setattr("pyengine.model.torch.draft.hand_over_reference", spoil)
    seen, wait = Seen(), TorchRunner.wait

    def watched(runner: TorchRunner, step: TorchStep) -> StepBuffers:
        results = wait(runner, step)
        if not isinstance(runner, TorchDraft):
            seen.look(results)
        return results

    monkeypatch.setattr(TorchRunner, "wait", watched)
    return seen


async def ask(tokens: int, config: dict[str, Any]) -> dict[str, int]:
    """Answers of all rules: some end by a stop string, some have a grammar or penalties and so no
    drafts of the draft model, some are given up.
    """
    rules = mixed(9, tokens)
    async with AsyncEngine(**ITSELF | config) as engine:

        async def one(index: int, prompt: str, params: SamplingParams) -> None:
            if index == 7:
                params = msgspec.structs.replace(params, stop=("e",))
            if index == 6:
                params = msgspec.structs.replace(params, repetition_penalty=1.3)
            grammar = choice(["yes", "certainly not"]) if index == 5 else None
            generation = engine.generate(prompt, params, grammar=grammar)
            if index == 4:
                await anext(aiter(generation))
                generation.abort()
                return
            await generation

        asked = enumerate(zip(prompts(9), rules, strict=True))
        await asyncio.gather(*(one(index, *pair) for index, pair in asked))
        return await engine.report()


@pytest.mark.parametrize(
    ("tokens", "config"),
    [
        (40, {}),
        pytest.param(
            40, {"max_tokens_per_step": 16, "max_sequences": 6, "max_draft": 9, "block_size": 4},
            marks=pytest.mark.slow,
        ),
        pytest.param(
            150, {"num_blocks": 60, "block_size": 8, "max_context": 400}, marks=pytest.mark.slow
        ),
    ],
    ids=["plain", "passes of few tokens", "preemption"],
)  # fmt: skip
async def test_every_draft_is_right_that_is_not_made_wrong(
    tokens: int, config: dict[str, Any], seen: Seen
) -> None:
    report = await ask(tokens, config)
    assert seen.wrong > 10
    assert seen.right > 50
    # A row's last bits depend on its company in torch, so that a tie may fall either way.
    assert seen.unexpected <= 0.01 * (seen.right + seen.wrong)
    assert report["accepted_draft_model"] > 50
    assert report["preemptions"] > 0 or "num_blocks" not in config
    assert report["free"] + report["cached"] == report["num_blocks"]


STOPS: tuple[dict[str, Any], ...] = (
    {"stop": ("e",)},
    {"stop": ("an", "ou")},
    {"stop": ("t", " "), "include_stop": True},
    {"stop": ("o",), "min_tokens": 6},
    {"stop_token_ids": tuple(range(300, 400))},
    {"stop_token_ids": tuple(range(400, 500)), "min_tokens": 3},
)
ENDS = (*({"max_tokens": tokens} for tokens in range(1, 13)), *STOPS * 6)


async def ended(**config: Any) -> list[tuple[Any, ...]]:
    """What a crowd is answered whose answers end soon, by the rules of :data:`ENDS` in turn."""
    given: dict[str, Any] = {"temperature": 1.0, "max_tokens": 40, "ignore_eos": True}
    rules = [SamplingParams(seed=seed, **given | end) for seed, end in enumerate(ENDS, 1)]
    async with AsyncEngine(
        **ITSELF | {"max_sequences": len(ENDS), "max_draft": 6} | config
    ) as engine:
        answers = await asyncio.gather(
            *(engine.generate(f"Number {params.seed}", params) for params in rules)
        )
        report = await engine.report()
    assert report["free"] + report["cached"] == report["num_blocks"]
    return [(each.token_ids, each.text, each.finish_reason) for each in answers]


async def test_answers_end_where_they_do_without_drafts(seen: Seen) -> None:
    """By a limit, a stop string or a token to stop at, in the middle of a row too."""
    drafted = await ended()
    within = {
        next(iter(end))
        for seed, (end, (tokens, *_)) in enumerate(zip(ENDS, drafted, strict=True), 1)
        if seen.ends_within(seed, len(tokens))
    }
    assert within == {"stop", "stop_token_ids"}  # no more drafts are asked for than a limit leaves
    assert drafted == await ended(speculation=(), draft_model=None)

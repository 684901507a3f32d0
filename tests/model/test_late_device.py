"""Steps that overlap on a device that works as late as it may give the tokens of those that do not.

The host is a whole step ahead of such a device, and everything that it wrote, or read, too early
would be seen in the tokens.
"""

import asyncio
import random
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import pytest
import torch

from benches.gpu.steps import add_prompt, fill
from pyengine import AsyncEngine, SamplingParams
from pyengine.grammar import choice, json_schema, regex
from pyengine.model.torch.attention import variants
from pyengine.model.torch.attention.backend import AttentionBackend
from pyengine.model.torch.attention.flashinfer import workspace
from pyengine.model.torch.attention.flashinfer.backend import FlashInferAttention
from pyengine.model.torch.attention.flashinfer.library import Library
from pyengine.model.torch.attention.spec import AttentionSpec
from pyengine.model.torch.attention.triton import TritonAttention
from pyengine.model.torch.runner import TorchRunner
from pyengine.model.torch.start.cpu import start_on_cpu
from pyengine.settings.config import EngineConfig
from tests.late_device import LateMark, LateQueue, queue_kernels
from tests.model.fake_flashinfer import Device

CPU = torch.device("cpu")


class LateEvent:
    """An event of torch's, as FlashInfer's wrappers are given one."""

    def __init__(self, queue: LateQueue) -> None:
        self._queue = queue
        self._mark: LateMark | None = None

    def record(self) -> None:
        self._mark = self._queue.mark()

    def synchronize(self) -> None:
        if self._mark is not None:
            self._mark.wait()


class LateDevice(Device):
    """Where the fakes of FlashInfer's wrappers work; what they do on the host is no operator."""

    def __init__(self, queue: LateQueue) -> None:
        super().__init__()
        self._late = queue

    def add(self, work: Callable[[], object]) -> None:
        self._late.add(work)

    def finish(self) -> None:
        """What is done with results is queued behind them."""

    def on_host(self) -> AbstractContextManager[None]:
        return self._late.at_once()

    def library(self) -> Library:
        return replace(super().library(), event=lambda: LateEvent(self._late))


def make_attention(name: str, queue: LateQueue) -> Callable[[AttentionSpec], AttentionBackend]:
    def triton(spec: AttentionSpec) -> TritonAttention:
        return TritonAttention(spec, CPU, processors=8)

    def flashinfer(spec: AttentionSpec) -> AttentionBackend:
        return FlashInferAttention(spec, CPU, LateDevice(queue).library())

    return triton if name == "triton" else flashinfer


def use_late_device(
    monkeypatch: pytest.MonkeyPatch, attention: str, seed: int | None
) -> tuple[list[LateQueue], set[str]]:
    """Engines in threads get late devices, which the list then has; and how these attended."""
    queue_kernels(monkeypatch)
    monkeypatch.setattr(workspace, "RECOMMENDED_BYTES", 4096)
    queues: list[LateQueue] = []
    variants: set[str] = set()

    def load(config: EngineConfig, progress: object = None) -> TorchRunner:
        queue = LateQueue(None if seed is None else random.Random(seed))
        queues.append(queue)
        runner = start_on_cpu(
            config, attention=make_attention(attention, queue), capturer=queue, queue=queue
        )
        backend: Any = runner._model.backend  # type: ignore[union-attr]
        plan = backend.plan

        def watched(step: Any, variant: str, *given: Any, **more: Any) -> None:
            variants.add(variant)
            plan(step, variant, *given, **more)

        backend.plan = watched
        return runner

    monkeypatch.setattr("pyengine.engine.settled", lambda config: config)
    monkeypatch.setattr("pyengine.engine.load_runner", load)
    return queues, variants


QUESTIONS: tuple[dict[str, Any], ...] = (
    {"grammar": choice(["certainly", "certainly not", "perhaps"])},
    {"grammar": regex(r"The answer is [0-9]{1,3}\.")},
    {"grammar": json_schema({"type": "object", "properties": {"name": {"type": "string"}}})},
    {"params": {"temperature": 0}},
    {"params": {"temperature": 0, "logprobs": 3}},
    {"params": {"temperature": 0.8, "top_p": 0.9, "seed": 11}},
    {"params": {"temperature": 0, "repetition_penalty": 1.4, "presence_penalty": 0.5}},
    {"params": {"temperature": 1.2, "top_k": 20, "seed": 12, "repetition_penalty": 1.1}},
    {"params": {"temperature": 0.7, "seed": 13, "logprobs": 2, "frequency_penalty": 0.3}},
)


async def ask(seed: int, **config: Any) -> list[Any]:
    """What a random crowd is answered: tokens, and what log-probabilities are of."""
    luck = random.Random(seed)
    given: dict[str, Any] = {
        "max_sequences": 6, "max_tokens_per_step": 64, "prefill_chunk": 24, "block_size": 4,
    }  # fmt: skip
    async with AsyncEngine(**given | config) as engine:

        async def one(index: int) -> Any:
            question = dict(luck.choice(QUESTIONS))
            params = SamplingParams(
                max_tokens=luck.randint(1, 40),
                ignore_eos="grammar" not in question,
                **question.pop("params", {"temperature": 0}),
            )
            lead = "Tell me about the planets. " * luck.choice((0, 0, 1, 6))
            prompt = f"<|im_start|>user\nPlease. {lead}{index}<|im_end|>\n<|im_start|>assistant\n"
            for _ in range(luck.randint(0, 3)):
                await asyncio.sleep(0)
            generation = engine.generate(prompt, params, **question)
            if index % 5 == 4:  # leaves when it likes, and with what is in flight
                await anext(aiter(generation))
                generation.abort()
                return None
            return await generation

        # By then all others begin with pages of the first.
        answers = [await one(0)]
        answers += await asyncio.gather(*(one(index) for index in range(1, 14)))
    return [
        (answer.token_ids, [[top.token_id for top in each.top] for each in answer.logprobs or ()])
        for answer in filter(None, answers)
    ]


DRAFTS: dict[str, dict[str, Any]] = {
    "no drafts": {"speculation": ()},
    # A graph takes one: there is room for few, and others are given up in flight.
    "drafts": {"_adaptive_drafts": False, "graph_memory_mib": 3},
    "draft model": {
        "draft_model": "demo", "speculation": ("draft_model",), "_adaptive_drafts": False,
        "max_draft": 3, "max_sequences": 20,
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def expected() -> list[Any]:
    """What is answered by a device that has no steps beside each other."""
    return asyncio.run(ask(7, speculation=()))


@pytest.mark.parametrize(
    ("attention", "luck"),
    [("triton", None), ("flashinfer", None), ("triton", 1)],
    ids=["triton", "flashinfer", "now and then at work"],
)
@pytest.mark.parametrize("drafts", DRAFTS)
async def test_nothing_is_read_or_written_too_early(
    drafts: str,
    attention: str,
    luck: int | None,
    expected: list[Any],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    queues, variants = use_late_device(monkeypatch, attention, luck)
    assert await ask(7, **DRAFTS[drafts]) == expected
    (queue,) = queues
    assert queue.waited > 20
    assert queue.replays > 5
    assert "cannot be captured" not in caplog.text
    assert variants >= {"decode", "ragged", *(["decode_cascade"] if attention == "triton" else [])}


def sampled(runner: TorchRunner) -> list[list[int]]:
    """What is sampled in steps of two that decode, of a prompt beside them, and of prompts alone,
    several times each, the next launched before the one before is waited for.
    """
    flying: deque[Any] = deque()
    found = []
    for rows, each, prompt in ((2, 1, 0), (2, 1, 20), (2, 1, 13), (1, 21, 0), (2, 11, 9)) * 2:
        buffers = runner.buffers()
        fill(buffers, rows, each, 9, runner.info.block_size, sampled=1)
        if prompt:
            add_prompt(buffers, prompt, runner.info.block_size)
        buffers.logit_token[0] = buffers.num_tokens - 1  # of the prompt, where there is one
        flying.append(runner.launch(buffers))
        flying[-1].sample()
        if len(flying) > runner.overlap:
            found.append(flying.popleft().wait().tokens.tolist())
    return [*found, *(step.wait().tokens.tolist() for step in flying)]


def test_graphs_of_prompts_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    config = EngineConfig(
        max_sequences=4, max_tokens_per_step=64, num_blocks=64, block_size=4, speculation=(),
    )  # fmt: skip
    expected = sampled(start_on_cpu(config))
    queue_kernels(monkeypatch)
    pays = "pyengine.model.torch.attention.cascade.cascade_pays"
    monkeypatch.setattr(pays, lambda *_, **__: False)
    monkeypatch.setattr(variants, "SHORT_QUERIES", 8)
    queue = LateQueue()
    attention = make_attention("triton", queue)
    runner = start_on_cpu(config, attention=attention, capturer=queue, queue=queue)
    assert runner.graphs is not None
    with runner.graphs.at_once():
        assert sampled(runner) == expected
    kept = [key for key in runner.graphs._kept if isinstance(key, tuple) and key[0] == "forward"]
    assert {key[1] for key in kept} == {"decode", "mixed", "prompts"}
    assert queue.replays > 5
    runner.close()

"""Steps with drafts of a draft model, on a device beside the CPU."""

import asyncio
from typing import Any

import pytest

from pyengine import AsyncEngine, Completion, SamplingParams
from pyengine.model.batch import StepBuffers
from pyengine.model.simulated import SimulatedRunner, SimulatedStep

ACCEPTANCE = 0.7


async def begin(engine: AsyncEngine) -> None:
    """Read the beginning of an answer, and give up the rest."""
    async for _ in engine.generate([7, 8], SamplingParams(max_tokens=400)):
        return


async def answers(**settings: Any) -> list[Completion]:
    """Answers of all kinds of length, some of which end by a stop string or are given up."""
    async with AsyncEngine(
        device="simulated",
        simulated_step_ms=0.2,
        simulated_acceptance=ACCEPTANCE,
        mode="local",
        **settings,
    ) as engine:
        generations = [
            engine.generate(
                list(range(5, 20 + 7 * number)),
                SamplingParams(
                    max_tokens=5 * number + 1,
                    seed=number,
                    temperature=1.0,
                    ignore_eos=True,
                    stop=("e",) if number % 5 == 4 else (),
                    logprobs=1 if number % 7 == 3 else None,
                ),
            )
            for number in range(16)
        ]
        given_up = [begin(engine) for _ in range(3)]
        done = await asyncio.gather(*generations)
        await asyncio.gather(*given_up)
    return list(done)


async def test_drafts_of_a_draft_model_change_no_token() -> None:
    plain = await answers(speculation=())
    drafted = await answers(speculation=("draft_model",), max_draft=4)
    kept = [(each.token_ids, each.text, each.finish_reason, each.logprobs) for each in plain]
    assert kept == [
        (each.token_ids, each.text, each.finish_reason, each.logprobs) for each in drafted
    ]
    assert sum(each.usage.accepted_drafts for each in drafted) > 100
    assert sum(each.usage.rejected_drafts for each in drafted) > 100


async def test_rows_are_drafted_for_beside_prompts(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[int] = []
    launch = SimulatedRunner.launch

    def launched(runner: SimulatedRunner, buffers: StepBuffers) -> SimulatedStep:
        if 0 < buffers.num_decode_rows < buffers.num_rows:
            seen.append(buffers.num_logits - buffers.num_sampled)
        return launch(runner, buffers)

    monkeypatch.setattr(SimulatedRunner, "launch", launched)
    long: dict[str, Any] = {"prefill_chunk": 4, "_adaptive_drafts": False}
    plain = await answers(speculation=(), **long)
    seen.clear()
    drafted = await answers(speculation=("draft_model",), max_draft=4, **long)
    assert sum(seen) > 100
    assert [each.token_ids for each in plain] == [each.token_ids for each in drafted]
    assert [each.logprobs for each in plain] == [each.logprobs for each in drafted]

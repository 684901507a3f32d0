"""The draft model on torch devices: drafts as on the CPU, without the host seeing any."""

from typing import Any

import pytest

from pyengine import AsyncEngine, EngineConfig
from pyengine.model.torch.draft import TorchDraft
from tests.model.test_draft import drafted, mixed, prompts
from tests.torch_devices import KINDS, start, use_torch


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "config",
    [
        {},
        {"max_sequences": 3, "max_tokens_per_step": 16, "prefill_chunk": 7},
        {"prefix_cache": False, "block_size": 4, "max_draft": 9},
    ],
    ids=str,
)
async def test_a_model_that_drafts_for_itself_is_right(
    kind: str, config: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch, kind)
    tokens, right, report = await drafted(prompts(9), mixed(9, 50), **config)
    assert tokens > 200
    # A row's last bits depend on its company in torch, so that a tie may fall either way.
    assert right >= 0.99 * tokens
    least = config.get("max_draft", 4) / 2
    assert report["completion_tokens"] > least * report["steps"], "so it takes few steps"


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_tokens_fed_meanwhile_are_caught_up_with(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Adaptive: drafts come and go, and steps between are fed by the device.
    use_torch(monkeypatch, kind)
    drafts = 0
    for config in ({"_adaptive_drafts": True}, {"speculation": ("ngram", "draft_model")}):
        tokens, right, _ = await drafted(prompts(8), mixed(8, 150), **config)
        assert right >= 0.99 * tokens
        drafts += tokens
    assert drafts > 0  # a busy machine may find that adaptive ones do not pay


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_preempted_sequence_is_drafted_for_again(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_torch(monkeypatch, kind)
    tokens, right, report = await drafted(
        prompts(10), mixed(10, 180), num_blocks=60, block_size=8, max_context=400
    )
    assert report["preemptions"] > 0
    assert right >= 0.99 * tokens > 0


async def answers(**config: Any) -> tuple[list[tuple[int, ...]], int, int]:
    """Token ids of some answers, one after the other; drafts, and those that were right."""
    ids = []
    async with AsyncEngine(max_sequences=8, max_draft=3, **config) as engine:
        for prompt, params in zip(prompts(8), mixed(8, 30), strict=True):
            answer = await engine.generate(prompt, params)
            ids.append(tuple(answer.token_ids))
        report = await engine.report()
    return (
        ids,
        int(report.get("drafted_draft_model", 0)),
        int(report.get("accepted_draft_model", 0)),
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
async def test_drafts_and_answers_are_those_of_the_cpu(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafting: dict[str, Any] = {
        "draft_model": "demo",
        "speculation": ("draft_model",),
        "_adaptive_drafts": False,
    }
    on_cpu, plain = await answers(**drafting), await answers(speculation=())
    assert on_cpu[0] == plain[0]
    use_torch(monkeypatch, kind)
    assert await answers(**drafting) == on_cpu
    assert on_cpu[1] > on_cpu[2] > 0


def test_draft_has_its_own_graphs_and_closes_with_its_runner() -> None:
    runner = start(EngineConfig(draft_model="demo", mode="interactive"), "overlapping")
    draft = runner.draft
    assert isinstance(draft, TorchDraft)
    assert draft.graphs is not None
    assert draft.graphs is not runner.graphs
    assert draft.num_blocks == runner.num_blocks
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        draft.launch(draft.buffers())

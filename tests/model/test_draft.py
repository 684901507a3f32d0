"""The draft model: a model that drafts for itself is always right, so its cache has no holes."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pyengine import AsyncEngine, EngineConfig, SamplingParams
from pyengine._core import CpuKernels, CpuProgram, CpuTensor
from pyengine.demo import DRAFT_PATH, MODEL_PATH
from pyengine.errors import ModelLoadError
from pyengine.grammar import choice
from pyengine.model.cpu.runner import CpuRunner
from pyengine.model.spec import check_same_tokens, describe

ITSELF: dict[str, Any] = {
    "model": str(DRAFT_PATH),
    "draft_model": "demo",
    "speculation": ("draft_model",),
    "_adaptive_drafts": False,
    "max_draft": 4,
    "max_sequences": 8,
}


def prompts(count: int) -> list[str]:
    """Prompts that begin alike; every third goes on for longer than a step."""
    lead = "<|im_start|>user\nList the planets, and then say what you know of each of them. "
    return [
        f"{lead}{'Again: ' * (40 if index % 3 == 0 else index)}{index}<|im_end|>\n"
        for index in range(count)
    ]


async def drafted(
    asked: Sequence[str], params: Sequence[SamplingParams], **config: Any
) -> tuple[int, int, dict[str, int]]:
    """Tokens that the draft model drafted, those that were right, and the whole report."""
    async with AsyncEngine(**ITSELF | config) as engine:
        await asyncio.gather(*(engine.generate(*pair) for pair in zip(asked, params, strict=True)))
        report = await engine.report()
    return int(report["drafted_draft_model"]), int(report["accepted_draft_model"]), report


def mixed(count: int, tokens: int) -> list[SamplingParams]:
    """Rules of all kinds."""
    kinds: tuple[dict[str, Any], ...] = (
        {"temperature": 0},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_p": 0.9},
        {"temperature": 1.5, "top_k": 12, "min_p": 0.02},
    )
    return [
        SamplingParams(seed=index, max_tokens=tokens + index, ignore_eos=True, **kinds[index % 4])
        for index in range(count)
    ]


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"prefill_chunk": 7},
        {"max_sequences": 3, "max_tokens_per_step": 16},
        {"prefix_cache": False, "block_size": 4},
        {"max_draft": 1},
        {"max_draft": 9},
    ],
    ids=str,
)
async def test_a_model_that_drafts_for_itself_is_always_right(config: dict[str, Any]) -> None:
    tokens, right, report = await drafted(prompts(12), mixed(12, 70), **config)
    assert tokens > 300
    assert right == tokens
    least = config.get("max_draft", 4) / 2
    assert report["completion_tokens"] > least * report["steps"], "so it takes few steps"


async def test_preempted_sequence_is_drafted_for_again() -> None:
    # More than admission keeps room for, so that a small cache preempts.
    tokens, right, report = await drafted(
        prompts(10), mixed(10, 180), num_blocks=60, block_size=8, max_context=400
    )
    assert report["preemptions"] > 0
    assert right == tokens > 0


async def test_sequence_without_drafts_is_caught_up_with() -> None:
    # Adaptive: drafts come and go, and a cache of one sequence lies still for a while.
    tokens, right, _ = await drafted(prompts(8), mixed(8, 150), _adaptive_drafts=True)
    assert tokens > 0
    assert right == tokens
    sources = {"speculation": ("ngram", "draft_model")}
    tokens, right, report = await drafted(prompts(8), mixed(8, 150), **sources)
    assert report["drafted_ngram"] > 0
    assert right == tokens > 0


def test_started_program_records_no_more() -> None:
    kernels = CpuKernels(1)
    program = CpuProgram(kernels)
    table, out = np.arange(12, dtype=np.float32).reshape(4, 3), np.zeros((2, 3), np.float32)
    index = CpuTensor(np.array([3, 0, 2, 1], np.int32))
    program.gather(CpuTensor(table), index, CpuTensor(out))
    program.run(2)
    assert (out == table[[3, 0]]).all()
    program.run(2, 1)
    assert (out == table[[0, 2]]).all()
    with pytest.raises(ValueError, match="runs already"):
        program.gather(CpuTensor(table), index, CpuTensor(out))
    with pytest.raises(ValueError, match="needs 5"):
        program.run(2, 3)
    program = CpuProgram(kernels)
    program.gather(CpuTensor(table[:3].copy()), index, CpuTensor(out))
    with pytest.raises(ValueError, match="no row 3 in the table"):
        program.run(1)


async def test_rows_with_grammars_are_left_to_the_host() -> None:
    async with AsyncEngine(**ITSELF | {"speculation": ("forced", "draft_model")}) as engine:
        greedy = SamplingParams(temperature=0, max_tokens=30)
        answers = await asyncio.gather(
            *(
                engine.generate(
                    prompt, greedy, grammar=choice(["yes, surely", "no"]) if index % 2 else None
                )
                for index, prompt in enumerate(prompts(8))
            )
        )
        report = await engine.report()
    assert {answer.text for answer in answers[1::2]} <= {"yes, surely", "no"}
    assert report["accepted_draft_model"] == report["drafted_draft_model"] > 0


async def test_the_sibling_is_mostly_right() -> None:
    asked = [
        f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
        for text in ("Spell banana", "What is the capital of France?", "Say: red green blue", "Hi!")
    ]
    greedy = [SamplingParams(temperature=0, max_tokens=16)] * len(asked)
    tokens, right, _ = await drafted(asked, greedy, model=None, max_draft=2)
    assert tokens > 20
    assert right > tokens / 2, "one of 2048 by chance"
    sampled = [SamplingParams(seed=3, max_tokens=16)] * len(asked)
    tokens, right, _ = await drafted(asked, sampled, model=None, max_draft=2)
    assert right > tokens / 3, "the same noise chooses the same tokens"


def test_a_block_holds_the_keys_and_values_of_both() -> None:
    alone = describe(EngineConfig())
    both = describe(EngineConfig(draft_model="demo"))
    draft = describe(EngineConfig(model=str(DRAFT_PATH)))
    assert both.info.block_bytes == alone.info.block_bytes + draft.info.block_bytes
    assert both.num_blocks == 256 * 2**20 // both.info.block_bytes < alone.num_blocks
    assert both.draft is not None
    assert both.draft.num_blocks == both.num_blocks
    assert describe(EngineConfig(draft_model="demo", max_draft=0)).draft is None
    runner = CpuRunner.from_config(EngineConfig(draft_model="demo", mode="interactive"))
    assert runner.num_blocks == 64 * 2**20 // both.info.block_bytes
    runner.close()


def test_other_tokens_are_refused_by_name(tmp_path: Path) -> None:
    tokenizer = json.loads((MODEL_PATH / "tokenizer.json").read_text(encoding="utf-8"))
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer, indent=1), encoding="utf-8")
    check_same_tokens(MODEL_PATH, tmp_path)  # spelled otherwise, but the same tokens
    tokenizer["added_tokens"][-1]["content"] = "<|other|>"
    path.write_text(json.dumps(tokenizer), encoding="utf-8")
    with pytest.raises(ModelLoadError, match=r"has other tokens than .*<\|other\|>"):
        check_same_tokens(MODEL_PATH, tmp_path)
    path.write_text("{}", encoding="utf-8")
    with pytest.raises(ModelLoadError, match="cannot compare"):
        check_same_tokens(MODEL_PATH, tmp_path)

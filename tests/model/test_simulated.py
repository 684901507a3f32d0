import json
import time
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from pyengine._core import StepLayout
from pyengine.errors import ConfigError
from pyengine.model.batch import StepBuffers
from pyengine.model.cache_layers import Keys
from pyengine.model.runner import ModelInfo
from pyengine.model.simulated import SimulatedRunner, printable_tokens
from tests.programs import python

TOKENS = np.arange(10, 90, dtype=np.int32)


def info(folder: Path = Path()) -> ModelInfo:
    return ModelInfo(
        name="m",
        folder=folder,
        architecture="LlamaForCausalLM",
        vocab_size=100,
        max_context=64,
        eos_token_ids=(2,),
        hidden_size=8,
        num_heads=1,
        layers=(Keys(1, 8),),
        dtype="float32",
        block_size=16,
        block_bytes=1024,
    )


def device(step_ms: float = 1.0, eos_rate: float = 0.0, draft_ms: float = 0.0) -> SimulatedRunner:
    return SimulatedRunner(
        info(),
        StepLayout(8, 8, 32, vocab_size=1000),
        num_blocks=16,
        max_sequences=8,
        step_ms=step_ms,
        tokens=TOKENS,
        eos_rate=eos_rate,
        draft_ms=draft_ms,
    )


def fill(buffers: StepBuffers, rows: list[tuple[int, float, int, int]]) -> None:
    """Rows of (sequence, temperature, seed, position), one token each."""
    buffers.num_rows = buffers.num_tokens = buffers.num_sampled = buffers.num_logits = len(rows)
    buffers.num_pages = buffers.num_feeds = 0
    buffers.logit_start[: len(rows) + 1] = range(len(rows) + 1)
    buffers.logit_row[: len(rows)] = range(len(rows))
    for row, (sequence, temperature, seed, position) in enumerate(rows):
        buffers.sample_sequence[row] = sequence
        buffers.sampling["temperature"][row] = temperature
        buffers.sampling["seed"][row] = seed
        buffers.sample_position[row] = position


def run(runner: SimulatedRunner, buffers: StepBuffers) -> NDArray[np.int32]:
    handle = runner.launch(buffers)
    handle.sample()
    return handle.wait().tokens


def test_a_step_takes_its_time_and_steps_do_not_overlap() -> None:
    runner = device(step_ms=3.0)
    begun = time.monotonic_ns()
    handles = []
    for _ in range(2):
        buffers = runner.buffers()
        fill(buffers, [(0, 0.0, 0, 5)])
        handles.append(runner.launch(buffers))
        handles[-1].sample()
    with pytest.raises(RuntimeError, match="in flight"):
        runner.buffers()
    for handle in handles:
        handle.wait()
        assert time.monotonic_ns() >= handle.end_ns
    (start_a, end_a), (start_b, end_b) = ((step.start_ns, step.end_ns) for step in handles)
    assert begun <= start_a
    assert start_b >= end_a
    assert end_a - start_a == end_b - start_b == 3_000_000
    runner.buffers()


def test_each_pass_of_its_draft_model_makes_a_step_longer() -> None:
    runner = device(step_ms=3.0, draft_ms=0.25)
    took = []
    for drafts in (0, 1, 4):
        buffers = runner.buffers()
        fill(buffers, [(0, 0.0, 0, 5)])
        buffers.max_device_drafts = drafts
        step = runner.launch(buffers)
        took.append(step.end_ns - step.start_ns)
        step.sample()
        step.wait()
    assert took == [3_000_000, 3_250_000, 4_000_000]


def test_tokens_depend_on_seed_and_position_alone() -> None:
    rows = [(i, 1.0, 1000 + i, 7 * i) for i in range(8)]

    def tokens(rows: list[tuple[int, float, int, int]]) -> list[int]:
        runner = device(step_ms=0.0)
        buffers = runner.buffers()
        fill(buffers, rows)
        drawn: list[int] = run(runner, buffers).tolist()
        return drawn

    together = tokens(rows)
    assert together == [tokens([row])[0] for row in rows]
    assert len(set(together)) > 4
    assert set(together) <= set(TOKENS.tolist())
    assert tokens([(0, 0.0, 1, 5)]) == tokens([(3, 0.0, 2, 5)])
    assert tokens([(0, 1.0, 1, 5)]) != tokens([(0, 1.0, 2, 5)])


def test_sampled_tokens_feed_the_next_step() -> None:
    runner = device(step_ms=0.0)
    buffers = runner.buffers()
    fill(buffers, [(5, 1.0, 3, 4), (2, 1.0, 9, 4)])
    said = run(runner, buffers).copy()
    following = runner.buffers()
    fill(following, [(2, 1.0, 9, 5), (5, 1.0, 3, 5)])
    following.num_feeds = 2
    following.feed_token[:2] = (0, 1)
    following.feed_sequence[:2] = (2, 5)
    run(runner, following)
    assert following.token_ids[:2].tolist() == [said[1], said[0]]


def test_the_end_of_sequence_comes_only_when_asked() -> None:
    def ends(rate: float) -> int:
        runner = device(step_ms=0.0, eos_rate=rate)
        count = 0
        for position in range(0, 800, 8):
            buffers = runner.buffers()
            fill(buffers, [(i, 1.0, 1, position + i) for i in range(8)])
            count += run(runner, buffers).tolist().count(2)
        return count

    assert ends(0.0) == 0
    assert 40 < ends(0.1) < 130


def test_launch_takes_the_set_that_was_given_out() -> None:
    runner = device()
    with pytest.raises(RuntimeError, match="returned last"):
        runner.launch(StepBuffers(runner.layout))


def test_a_negative_step_is_refused() -> None:
    with pytest.raises(ConfigError):
        device(step_ms=-1.0)


def test_only_plain_text_is_said(tmp_path: Path) -> None:
    vocabulary = {"a": 0, "\u0120the": 1, "</s>": 2, "<0x0A>": 3, "\u00e9": 4, "\u0120": 5, "b": 6}
    (tmp_path / "tokenizer.json").write_text(
        json.dumps({"model": {"vocab": vocabulary}, "added_tokens": [{"id": 6, "content": "b"}]})
    )
    assert printable_tokens(info(tmp_path)).tolist() == [0, 1]


def test_without_a_tokenizer_any_token_but_the_end(tmp_path: Path) -> None:
    assert sorted({*range(100)} - {*printable_tokens(info(tmp_path)).tolist()}) == [2]


@pytest.mark.parametrize("module", ["simulated", "runner", "spec", "batch"])
def test_no_torch_is_imported(module: str) -> None:
    assert (
        python(f"import sys, pyengine.model.{module}; print('torch' in sys.modules)") == "False\n"
    )

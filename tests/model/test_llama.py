"""Parity with transformers on random weights."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pyengine.model.batch import StepBuffers
from pyengine.model.cpu.runner import CpuStepHandle
from tests.model.llamas import (
    Loop,
    Sequence,
    assert_rows_read_what_their_step_writes,
    greedy,
    make_llama,
    make_runner,
    prompts,
)

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

SHAPES: dict[str, dict[str, Any]] = {
    "grouped": {},
    "one query head per key head": {"num_key_value_heads": 6},
    "one key head": {"num_key_value_heads": 1},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "llama3 rope": {"rope_parameters": LLAMA3},
    "linear rope": {"rope_parameters": {"rope_type": "linear", "rope_theta": 500.0, "factor": 2.0}},
    "head_dim apart": {"head_dim": 24},
    "wide": {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2},
}


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make_llama(tmp_path, **SHAPES[name])
    runner = make_runner(tmp_path)
    asked = prompts(8)
    expected = [greedy(model, prompt, 24) for prompt in asked]
    assert Loop(runner).generate(asked, 24) == expected
    assert Loop(runner, chunk=16, seed=1).generate(asked, 24) == expected


@pytest.mark.parametrize("block_size", [1, 4, 8, 32, 256])
def test_any_block_size(block_size: int, tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    runner = make_runner(tmp_path, block_size=block_size, num_blocks=max(8, 1024 // block_size))
    asked = prompts(5)
    assert Loop(runner, chunk=7).generate(asked, 8) == [greedy(model, p, 8) for p in asked]


def test_rows_read_what_their_step_writes(tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    assert_rows_read_what_their_step_writes(make_runner(tmp_path), model)


def logits_after(runner: Any, tokens: list[int], chunk: int) -> torch.Tensor:
    sequence, loop = Sequence(list(tokens), 0), Loop(runner, chunk)
    while len(sequence.tokens) == len(tokens):
        loop.step([sequence])
    return torch.from_numpy(runner._model.logits_rows.tensor[0].astype(np.float32))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("bfloat16", 0.06)])
def test_logits_are_close(dtype: str, tolerance: float, tmp_path: Path) -> None:
    model = make_llama(tmp_path, dtype=dtype, initializer_range=0.12)
    runner = make_runner(tmp_path, dtype=dtype)
    for prompt in prompts(4):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1].float()
        for chunk in (5, 1000):
            ours = logits_after(runner, prompt, chunk)
            # bfloat16 has 8 bits: the error is beside the spread of the logits.
            assert (ours - expected).abs().max() < tolerance * expected.std()


def test_float32_weights_in_a_bfloat16_engine(tmp_path: Path) -> None:
    make_llama(tmp_path)
    runner = make_runner(tmp_path, dtype="bfloat16")
    assert runner.info.block_bytes == 2 * 3 * 2 * 8 * 16 * 2
    assert len(Loop(runner).generate([[1, 2, 3]], 4)[0]) == 4


def test_a_sequence_gets_the_same_tokens_alone_and_on_one_thread(tmp_path: Path) -> None:
    make_llama(tmp_path)
    rules = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.01, "seed": 99}
    asked = prompts(6)
    together = Loop(make_runner(tmp_path)).generate(asked, 12, **rules)
    one = Loop(make_runner(tmp_path, threads=1))
    assert [one.generate([prompt], 12, **rules)[0] for prompt in asked] == together
    assert Loop(one.runner).generate(asked, 12, **(rules | {"seed": 100})) != together


def test_more_sampled_rows_than_the_logits_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_llama(tmp_path)
    monkeypatch.setattr("pyengine.model.cpu.layers.LOGITS_BYTES", 3 * 131 * 4)
    runner = make_runner(tmp_path)
    assert runner._model is not None
    assert len(runner._model.logits_rows.tensor) == 3
    asked = prompts(8)
    assert Loop(runner).generate(asked, 4) == [greedy(model, p, 4) for p in asked]


def test_tokens_that_only_the_runner_knows(tmp_path: Path) -> None:
    make_llama(tmp_path)
    runner = make_runner(tmp_path)
    expected = Loop(runner).generate([[5, 6, 7]], 2)[0]
    sequence, loop = Sequence([5, 6, 7], 4), Loop(runner)
    loop.step([sequence])
    known = sequence.tokens.pop()
    sequence.tokens.append(0)
    buffers = runner.buffers()
    launch = runner.launch

    def with_feed(buffers: StepBuffers) -> CpuStepHandle:
        buffers.num_feeds = 1
        buffers.feed_token[0], buffers.feed_sequence[0] = 0, 4
        return launch(buffers)

    runner.launch = with_feed  # type: ignore[method-assign]
    loop.step([sequence])
    assert buffers.token_ids[0] == known == expected[0]
    assert sequence.tokens[-1] == expected[1]


def test_a_malformed_step_is_refused_and_the_runner_goes_on(tmp_path: Path) -> None:
    make_llama(tmp_path)
    runner = make_runner(tmp_path)
    buffers = runner.buffers()
    buffers.num_rows = buffers.num_tokens = buffers.num_sampled = buffers.num_pages = 1
    buffers.num_feeds = 0
    buffers.query_start[:2] = (0, 1)
    buffers.kv_length[0] = 1
    buffers.page_indptr[:2] = (0, 1)
    buffers.page_indices[0] = 10_000
    with pytest.raises(ValueError, match="block outside of the cache"):
        runner.launch(buffers)
    assert len(Loop(runner).generate([[1, 2]], 3)[0]) == 3


def test_parameters_are_counted(tmp_path: Path) -> None:
    model = make_llama(tmp_path, tie_word_embeddings=True)
    assert make_runner(tmp_path).info.num_parameters == model.num_parameters()


def test_a_closed_runner_says_so(tmp_path: Path) -> None:
    make_llama(tmp_path)
    runner = make_runner(tmp_path)
    runner.close()
    runner.close()
    with pytest.raises(RuntimeError, match="closed"):
        runner.launch(runner.buffers())

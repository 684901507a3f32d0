"""A torch model on the CPU says what transformers and the Rust kernels say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.model.llamas import (
    Loop,
    Sequence,
    assert_rows_read_what_their_step_writes,
    greedy,
    make_llama,
    make_runner,
    prompts,
)
from tests.model.test_llama import SHAPES
from tests.model.torch_steps import GreedyRunner


@pytest.mark.parametrize("name", SHAPES)
def test_greedy_tokens_equal_transformers(name: str, tmp_path: Path) -> None:
    model = make_llama(tmp_path, **SHAPES[name])
    runner = GreedyRunner(tmp_path)
    asked = prompts(4)
    expected = [greedy(model, prompt, 10) for prompt in asked]
    assert Loop(runner).generate(asked, 10) == expected
    assert Loop(runner, chunk=16, seed=1).generate(asked, 10) == expected


@pytest.mark.parametrize("block_size", [1, 4, 32, 256])
def test_any_block_size(block_size: int, tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    runner = GreedyRunner(tmp_path, block_size=block_size, num_blocks=max(8, 1024 // block_size))
    asked = prompts(3)
    assert Loop(runner, chunk=7).generate(asked, 8) == [greedy(model, p, 8) for p in asked]


def test_rows_read_what_their_step_writes(tmp_path: Path) -> None:
    model = make_llama(tmp_path)
    assert_rows_read_what_their_step_writes(GreedyRunner(tmp_path), model)


def logits_after(runner: Any, tokens: list[int], chunk: int) -> torch.Tensor:
    sequence, loop = Sequence(list(tokens), 0), Loop(runner, chunk)
    while len(sequence.tokens) == len(tokens):
        loop.step([sequence])
    if isinstance(runner, GreedyRunner):
        return runner.logits[0]
    return torch.from_numpy(runner._model.logits_rows.tensor[0].astype(np.float32))


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-4), ("bfloat16", 0.06)])
def test_logits_are_close_to_both(dtype: str, tolerance: float, tmp_path: Path) -> None:
    model = make_llama(tmp_path, dtype=dtype, initializer_range=0.12)
    torch_runner, rust_runner = (
        GreedyRunner(tmp_path, dtype=dtype),
        make_runner(tmp_path, dtype=dtype),
    )
    for prompt in prompts(4):
        with torch.inference_mode():
            expected = model(torch.tensor([prompt])).logits[0, -1].float()
        for chunk in (5, 1000):
            ours = logits_after(torch_runner, prompt, chunk)
            assert (ours - expected).abs().max() < tolerance * expected.std()
            rust = logits_after(rust_runner, prompt, chunk)
            assert (ours - rust).abs().max() < tolerance * expected.std()


def test_float16(tmp_path: Path) -> None:
    model = make_llama(tmp_path, dtype="float16", initializer_range=0.12)
    runner = GreedyRunner(tmp_path, dtype="float16")
    prompt = prompts(1)[0]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].float()
    ours = logits_after(runner, prompt, 1000)
    assert (ours - expected).abs().max() < 0.02 * expected.std()


def test_a_cache_of_eight_bits(tmp_path: Path) -> None:
    model = make_llama(tmp_path, initializer_range=0.12)
    runner = GreedyRunner(tmp_path, kv_dtype=torch.float8_e4m3fn)
    assert {keys.dtype for keys, _ in runner.model.pool.caches} == {torch.float8_e4m3fn}
    prompt = prompts(1)[0]
    with torch.inference_mode():
        expected = model(torch.tensor([prompt])).logits[0, -1].float()
    ours = logits_after(runner, prompt, 5)
    assert (ours - expected).abs().max() < 0.5 * expected.std()
    assert not torch.equal(ours, expected)


def test_every_token_of_a_row_may_have_its_logits(tmp_path: Path) -> None:
    """As drafts do: positions within rows of one step, and more of them than one call takes."""
    model = make_llama(tmp_path)
    runner = GreedyRunner(tmp_path)
    runner.model.rows_per_call = 5
    rows = prompts(3, longest=12)
    step = runner.buffers()
    tokens = sum(map(len, rows))
    step.num_rows = step.num_sampled = len(rows)
    step.num_tokens = step.num_logits = tokens
    step.logit_token[:tokens] = range(tokens)
    start = 0
    for row, sequence in enumerate(rows):
        here = slice(start, start + len(sequence))
        step.token_ids[here], step.positions[here] = sequence, range(len(sequence))
        step.slot_mapping[here] = range(row * 16, row * 16 + len(sequence))
        step.query_start[row : row + 2] = start, here.stop
        step.kv_length[row] = len(sequence)
        step.page_indptr[row : row + 2], step.page_indices[row] = (row, row + 1), row
        start = here.stop
    runner.launch(step)
    with torch.inference_mode():
        expected = torch.cat([model(torch.tensor([sequence])).logits[0] for sequence in rows])
    assert (runner.logits - expected).abs().max() < 2e-4 * expected.std()


def test_padding_is_not_stored(tmp_path: Path) -> None:
    make_llama(tmp_path)
    runner = GreedyRunner(tmp_path)
    step = runner.buffers()
    step.num_rows, step.num_tokens = 1, 2
    step.slot_mapping[:4] = 16, 17, -1, -1
    step.query_start[:2], step.kv_length[0], step.page_indptr[:2] = (0, 2), 2, (0, 1)
    step.page_indices[0] = 1
    runner.model.backend.plan(runner.step, "ragged", 1, 4, captured=False)
    runner.model.forward(runner.step, 4)
    for keys, values in runner.model.pool.caches:
        for cache in (keys, values):
            assert cache.flatten(0, 1)[16:18].abs().sum() > 0
            cache.flatten(0, 1)[16:18] = 0
            assert not cache.any()


def test_parameters_are_counted(tmp_path: Path) -> None:
    model = make_llama(tmp_path, tie_word_embeddings=True)
    assert GreedyRunner(tmp_path).model.num_parameters == model.num_parameters()

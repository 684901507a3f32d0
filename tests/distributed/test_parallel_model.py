"""Ranks that share a model compute what one does: logits of every shape, on threads."""

from pathlib import Path
from typing import Any

import pytest
import torch

from pyengine.distributed.group import Group
from pyengine.errors import ConfigError
from tests.distributed.thread_ranks import together
from tests.model.llamas import Loop, Sequence, make_llama, prompts
from tests.model.torch_steps import GreedyRunner

SHAPES: dict[str, dict[str, Any]] = {
    "plain": {},
    "tied": {"tie_word_embeddings": True},
    "biases": {"attention_bias": True, "mlp_bias": True},
    "a vocabulary that ranks divide": {"vocab_size": 132},
    "head_dim apart": {"head_dim": 24},
}


def logits(folder: Path, group: Group | None, **config: Any) -> torch.Tensor:
    runner = GreedyRunner(folder, group=group, **config)
    sequences = [Sequence(prompt, slot) for slot, prompt in enumerate(prompts(3))]
    loop = Loop(runner, chunk=50)
    while any(sequence.computed < len(sequence.tokens) - 1 for sequence in sequences):
        loop.step([s for s in sequences if s.computed < len(s.tokens)])
    return runner.logits.clone()


@pytest.mark.parametrize("name", SHAPES)
def test_two_ranks_have_the_logits_of_one(name: str, tmp_path: Path) -> None:
    make_llama(tmp_path, **SHAPES[name])
    alone = logits(tmp_path, None)
    first, second = together(2, lambda group: logits(tmp_path, group))
    assert torch.equal(first, second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()


def test_more_ranks_and_sixteen_bits(tmp_path: Path) -> None:
    make_llama(tmp_path, num_key_value_heads=6, initializer_range=0.12)
    alone = logits(tmp_path, None, dtype="bfloat16")
    first, *others = together(3, lambda group: logits(tmp_path, group, dtype="bfloat16"))
    assert all(torch.equal(first, other) for other in others)
    assert (first - alone).abs().max() < 0.1 * alone.std()


def test_weights_that_are_made_up_are_the_same_however_divided(tmp_path: Path) -> None:
    make_llama(tmp_path)
    alone = logits(tmp_path, None, load_format="dummy")
    first, _ = together(2, lambda group: logits(tmp_path, group, load_format="dummy"))
    assert (first - alone).abs().max() < 1e-3 * alone.std()


@pytest.mark.parametrize("quantization", ["int8", "int4"])
def test_weights_quantized_at_load_are_the_same_however_divided(
    quantization: str, tmp_path: Path
) -> None:
    make_llama(tmp_path, hidden_size=64, num_attention_heads=4, intermediate_size=128)
    alone = logits(tmp_path, None, quantization=quantization)
    first, _ = together(2, lambda group: logits(tmp_path, group, quantization=quantization))
    # Products round their rows to 8 bits. Ranks add in another order, so a number that lies
    # between two steps may be rounded the other way; the other rows stay as they are.
    apart = (first - alone).abs().amax(1) / alone.std()
    assert apart.median() < 1e-3
    assert apart.max() < 0.05
    assert (first - logits(tmp_path, None)).abs().max() > 1e-3 * alone.std()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_key_value_heads": 1}, "1 kv heads"),
        ({"num_key_value_heads": 3}, "3 kv heads"),
        ({"intermediate_size": 71}, "71 feed-forward units"),
    ],
)
def test_sizes_that_ranks_do_not_divide_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make_llama(tmp_path, **changes)
    with pytest.raises(ConfigError, match=f"{message} .* cannot be divided by 2 ranks"):
        together(2, lambda group: GreedyRunner(tmp_path, group=group))

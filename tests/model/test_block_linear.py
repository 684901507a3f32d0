"""Layers of 8-bit floats with scales for blocks of inputs, as a GPU has them, by references."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.model.torch.layers import parts as layers
from pyengine.model.torch.layers.linear.block import BlockLinear, is_blocks
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.weights.float8 import Float8, Float8Activations, step_of
from pyengine.model.weights.matrix import Dense, Matrix
from tests.model.llamas import prompts
from tests.model.test_float8_linear import CPU, ROWS, buffer, parts
from tests.model.test_quantized_folders import twins
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

INPUTS = 320
ROUNDED = Float8Activations()


def blocks(
    outputs: int,
    block: tuple[int, int],
    first: tuple[int, int] = (0, 0),
    seed: int = 0,
    activations: Float8Activations | None = ROUNDED,
) -> Float8:
    random = np.random.default_rng(seed)
    values = random.normal(size=(outputs, INPUTS)).astype(np.float32)
    below, beside = (
        -(-(size + at) // side)
        for size, at, side in zip((outputs, INPUTS), first, block, strict=True)
    )
    scales = random.uniform(0.01, 0.1, (below, beside)).astype(np.float32)
    return Float8(values.astype(ml_dtypes.float8_e4m3fn), scales, block, first, activations)


# And the inputs that have one scale.
MATRICES = {
    "of DeepSeek": (Matrix((blocks(300, (128, 128)),)), 128),
    # Queries, keys and values: each begins a block of its own.
    "of parts": (Matrix((blocks(48, (128, 128)), blocks(20, (128, 128), seed=1))), 128),
    "a rank's outputs": (Matrix((blocks(40, (128, 128), first=(100, 0)),)), 128),
    "a rank's inputs": (Matrix((blocks(40, (128, 128), first=(0, 96)),)), 32),
    "groups of outputs": (Matrix((blocks(40, (1, 64)),)), 64),
    "by output, beside blocks": (Matrix((blocks(24, (1, INPUTS)), blocks(24, (64, 192)))), 64),
    "wide blocks": (Matrix((blocks(24, (256, 256)),)), 128),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_numbers_that_are_meant(kind: str, biased: bool) -> None:
    (weight, step), made = MATRICES[kind], parts()
    outputs, inputs = weight.shape
    bias = np.linspace(-1, 1, outputs, dtype=np.float32) if biased else None
    linear = BlockLinear(made, weight, bias, reduce=False)
    made.loaded()
    x = torch.randn(8, inputs, generator=torch.Generator().manual_seed(0))
    x = (x * (torch.arange(inputs) // step + 1)).to(torch.bfloat16)
    out = torch.full((8, outputs), float("nan"), dtype=torch.bfloat16)
    linear(buffer(x), buffer(out), ROWS)
    meant = torch.from_numpy(weight.dequantized(np.dtype(np.float32)))
    rounded = torch.empty_like(x, dtype=torch.float32)
    for group, numbers in zip(rounded.split(step, 1), x.float().split(step, 1), strict=True):
        scale = numbers.abs().amax(1, keepdim=True) / 448
        group.copy_((numbers / scale).to(torch.float8_e4m3fn).float() * scale)
    shift = 0 if bias is None else torch.from_numpy(bias).to(torch.bfloat16)
    torch.testing.assert_close(
        out[:ROWS].float(), (rounded @ meant.T + shift)[:ROWS], rtol=0.02, atol=0.02
    )
    assert out[ROWS:].isnan().all()
    # And near to what the model's own type would give: rows are rounded to 4 bits of mantissa.
    exact = (x.float() @ meant.T + shift)[:ROWS]
    assert (out[:ROWS].float() - exact).norm() < 0.05 * exact.norm()
    # A byte a weight, and four for each scale.
    assert made.transfer.nbytes <= outputs * (inputs + 4 * -(-inputs // step) + 2)


def test_only_what_the_device_multiplies_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    capability: list[tuple[int, int]] = [(8, 9)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    for matrix, step in MATRICES.values():
        assert step_of(matrix) == step
        assert is_blocks(matrix, gpu, bf16)
    one = MATRICES["of DeepSeek"][0]
    refused: list[tuple[Any, ...]] = [
        (one, CPU, bf16),
        (one, gpu, torch.float32),
        (Matrix((blocks(40, (16, 16)),)), gpu, bf16),
        (Matrix((blocks(40, (128, 128), first=(0, 80)),)), gpu, bf16),  # steps of 16
        (Matrix((blocks(40, (128, 128), activations=None),)), gpu, bf16),  # rows keep their type
        (Matrix((*one.parts, Dense(np.zeros((16, INPUTS), np.float32)))), gpu, bf16),
    ]
    for given in refused:
        assert not is_blocks(*given)
    capability[0] = (8, 6)
    assert not is_blocks(one, gpu, bf16)


def test_a_folder_of_them_says_what_its_dense_twin_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as on the CPU, multiplied as on a GPU."""
    packed, dense = twins(tmp_path, "llama", "fp8 in blocks")
    made: list[BlockLinear] = []

    def noted(parts: TorchParts, weight: Matrix, bias: Any, *, reduce: bool) -> BlockLinear:
        made.append(BlockLinear(parts, weight, bias, reduce=reduce))
        return made[-1]

    monkeypatch.setattr(layers, "BlockLinear", noted)
    monkeypatch.setattr(layers, "is_blocks", lambda weight, *_: step_of(weight) > 0)
    ours, twin = (GreedyRunner(folder, dtype="bfloat16") for folder in (packed, dense))
    assert len(made) == 2 * 4  # of two layers
    for prompt in prompts(3, longest=20):
        logits, expected = logits_after(ours, prompt, 1000), logits_after(twin, prompt, 1000)
        assert torch.cosine_similarity(logits, expected, dim=0) > 0.95

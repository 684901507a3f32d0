"""Layers of floats of 8 bits as a GPU has them, by torch's product on the CPU."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.model.architectures.buffer import Buffer
from pyengine.model.torch.attention.torch import TorchAttention
from pyengine.model.torch.layers import parts as layers
from pyengine.model.torch.layers.linear.float8 import Float8Linear, is_float8
from pyengine.model.torch.layers.parts import TorchParts
from pyengine.model.weights.float8 import Float8, Float8Activations, activations_of
from pyengine.model.weights.matrix import Dense, Matrix
from tests.model.llamas import prompts
from tests.model.test_quantized_folders import twins
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

CPU, INPUTS, ROWS = torch.device("cpu"), 64, 5
ROUNDED = Float8Activations()


def float8(
    outputs: int,
    block: tuple[int, int],
    first: int = 0,
    seed: int = 0,
    activations: Float8Activations | None = ROUNDED,
) -> Float8:
    random = np.random.default_rng(seed)
    values = random.normal(size=(outputs, INPUTS)).astype(np.float32)
    blocks = -(-(outputs + first) // block[0]), -(-INPUTS // block[1])
    scales = random.uniform(0.01, 0.1, blocks).astype(np.float32)
    return Float8(values.astype(ml_dtypes.float8_e4m3fn), scales, block, (first, 0), activations)


def parts() -> TorchParts:
    kinds = torch.bfloat16, torch.bfloat16
    return TorchParts(CPU, *kinds, TorchAttention(), max_tokens=8, max_sampled=8, num_blocks=1)


def buffer(rows: torch.Tensor) -> Buffer:
    return Buffer(rows, rows)


MATRICES = {
    "by output": Matrix((float8(32, (1, INPUTS)),)),
    "by tensor": Matrix((float8(48, (48, INPUTS)),)),
    # As queries, keys and values lie together, of which each has scales of its own; and a rank's.
    "of parts": Matrix((float8(16, (16, INPUTS)), float8(32, (1, INPUTS), seed=1))),
    "a rank's": Matrix((float8(32, (24, INPUTS), first=8),)),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_numbers_that_are_meant(kind: str, biased: bool) -> None:
    weight, made = MATRICES[kind], parts()
    outputs = weight.shape[0]
    bias = np.linspace(-1, 1, outputs, dtype=np.float32) if biased else None
    linear = Float8Linear(made, weight, bias, reduce=False)
    made.loaded()
    x = torch.randn(8, INPUTS, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    out = torch.full((8, outputs), float("nan"), dtype=torch.bfloat16)
    linear(buffer(x), buffer(out), ROWS)
    meant = torch.from_numpy(weight.dequantized(np.dtype(np.float32)))
    scale = x.float().abs().amax(1, keepdim=True) / 448
    rounded = (x.float() / scale).to(torch.float8_e4m3fn).float() * scale
    expected = rounded @ meant.T
    if bias is not None:
        expected = expected.to(torch.bfloat16).float() + torch.from_numpy(bias)
    torch.testing.assert_close(out[:ROWS].float(), expected[:ROWS], rtol=0.02, atol=0.02)
    assert out[ROWS:].isnan().all()
    # And near to what the model's own type would give: rows are rounded to 4 bits of mantissa.
    exact = x.float() @ meant.T + (0 if bias is None else torch.from_numpy(bias))
    error = (out.float() - exact)[:ROWS].norm() / exact[:ROWS].norm()
    assert error < 0.05
    # A byte a weight, and four for each scale.
    assert made.transfer.nbytes < outputs * (INPUTS + 4) + 4 * outputs + 1


def test_no_number_counts_for_more_than_the_bound() -> None:
    """An outlier becomes the bound, and its row is as precise as one without it."""
    activations = Float8Activations(bound=2.0)
    weight = Matrix((float8(32, (1, INPUTS), activations=activations),))
    made = parts()
    linear = Float8Linear(made, weight, None, reduce=False)
    made.loaded()
    x = torch.rand(8, INPUTS, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    outlier, bounded = x.clone(), x.clone()
    outlier[:, 5], bounded[:, 5] = -1e4, -2.0
    outs = [torch.zeros(8, 32, dtype=torch.bfloat16) for _ in range(2)]
    for given, out in zip((outlier, bounded), outs, strict=True):
        linear(buffer(given), buffer(out), 8)
    assert outs[0].equal(outs[1])
    assert outs[0].any()


def test_only_what_the_device_multiplies_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    capability: list[tuple[int, int]] = [(9, 0)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    one = MATRICES["by output"]
    assert all(is_float8(matrix, gpu, bf16) for matrix in MATRICES.values())
    refused: list[tuple[Any, ...]] = [
        (one, CPU, bf16),
        (one, gpu, torch.float16),
        (Matrix((float8(40, (1, INPUTS)),)), gpu, bf16),
        (Matrix((float8(32, (16, 16)),)), gpu, bf16),  # scales for blocks of inputs
        (Matrix((float8(32, (1, INPUTS), activations=None),)), gpu, bf16),  # rows keep their type
        (Matrix((*one.parts, float8(16, (1, INPUTS), activations=None))), gpu, bf16),
        (Matrix((*one.parts, Dense(np.zeros((16, INPUTS), np.float32)))), gpu, bf16),
    ]
    for given in refused:
        assert not is_float8(*given)
    capability[0] = (8, 6)
    assert not is_float8(one, gpu, bf16)


@pytest.mark.parametrize("kind", ["float-quantized, tensor, W8A8", "fbgemm_fp8"])
def test_a_folder_of_them_says_what_its_dense_twin_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as on the CPU, multiplied as on a GPU."""
    packed, dense = twins(tmp_path, "llama", kind)
    made: list[Float8Linear] = []

    def noted(parts: TorchParts, weight: Matrix, bias: Any, *, reduce: bool) -> Float8Linear:
        made.append(Float8Linear(parts, weight, bias, reduce=reduce))
        return made[-1]

    monkeypatch.setattr(layers, "Float8Linear", noted)
    monkeypatch.setattr(
        layers,
        "is_float8",
        lambda weight, *_: activations_of(weight) is not None,
    )
    ours, twin = (GreedyRunner(folder, dtype="bfloat16") for folder in (packed, dense))
    assert len(made) == 2 * 4  # of two layers
    for prompt in prompts(3, longest=20):
        logits, expected = logits_after(ours, prompt, 1000), logits_after(twin, prompt, 1000)
        assert torch.cosine_similarity(logits, expected, dim=0) > 0.98
        assert not logits.equal(expected)

"""Layers of integers of 4 and 8 bits as a GPU has them, by references."""

from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.errors import ConfigError
from pyengine.model.torch.layers import parts as layers
from pyengine.model.torch.layers.linear.weight_only import (
    WeightOnlyLinear,
)
from pyengine.model.torch.layers.packed_weights import shares, stay_packed
from pyengine.model.weights.float8 import Float8
from pyengine.model.weights.matrix import Dense, Matrix, Packed
from tests.model.llamas import prompts
from tests.model.quantized import has_products
from tests.model.test_block_linear import blocks
from tests.model.test_float8_linear import CPU, ROWS, buffer, parts
from tests.model.test_quantized_folders import FORMATS, twins
from tests.model.test_torch_model import logits_after
from tests.model.torch_steps import GreedyRunner

INPUTS = 192


def packed(
    outputs: int, bits: int, group: int, kind: str = "symmetric", *, wide: bool = False
) -> Packed:
    """At random, with scales that 16 bits hold unless they are ``wide``."""
    random = np.random.default_rng(outputs * bits + group)
    groups = INPUTS // group
    scales = random.uniform(0.01, 0.1, (outputs, groups)).astype(np.float16).astype(np.float32)
    zeros = random.integers(0, 1 << bits, (outputs, groups), dtype=np.uint8)
    return Packed(
        random.integers(0, 256, (outputs, INPUTS * bits // 8), dtype=np.uint8),
        scales + np.float32(1e-6) * wide,
        zeros if kind == "zeros" else None,
        random.uniform(0, 1, (outputs, groups)).astype(np.float32) if kind == "minimums" else None,
        bits,
        group,
    )


def float8(outputs: int, block: tuple[int, int], first: int = 0) -> Float8:
    """Of a checkpoint that keeps the type of rows."""
    wide = blocks(outputs, block, (0, first), seed=outputs, activations=None)
    return wide.columns(slice(0, INPUTS))


MATRICES = {
    "of AWQ": Matrix((packed(48, 4, 64, "zeros"),)),
    "of parts": Matrix((packed(32, 4, 32), packed(16, 4, 32))),
    "8 bits": Matrix((packed(48, 8, 32, wide=True),)),
    "by output": Matrix((packed(48, 8, INPUTS, "zeros"),)),
    # As GGUF's Q4_K_M has queries and keys beside values.
    "mixed": Matrix((packed(16, 4, 32, "minimums"), packed(16, 4, 32), packed(16, 8, 16))),
    "8-bit floats by output": Matrix((float8(48, (1, 320)),)),
    "8-bit floats in blocks": Matrix((float8(40, (128, 128), first=96),)),
    "8-bit floats of parts": Matrix((float8(24, (24, 320)), float8(16, (1, 320)))),
    "8-bit floats beside integers": Matrix((float8(24, (1, 320)), packed(16, 8, 32))),
}


@pytest.mark.parametrize("kind", MATRICES)
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_numbers_that_are_meant(kind: str, biased: bool) -> None:
    weight, made = MATRICES[kind], parts()
    outputs, inputs = weight.shape
    bias = np.linspace(-1, 1, outputs, dtype=np.float32) if biased else None
    linear = WeightOnlyLinear(made, shares([weight], made.transfer), bias, reduce=False)
    made.loaded()
    x = torch.randn(8, inputs, generator=torch.Generator().manual_seed(0)).to(torch.bfloat16)
    out = torch.full((8, outputs), float("nan"), dtype=torch.bfloat16)
    linear(buffer(x), buffer(out), ROWS)
    # Weights are those of a dense layer, to the bit.
    meant = weight.dequantized(np.dtype(ml_dtypes.bfloat16)).astype(np.float32)
    expected = x.float() @ torch.from_numpy(meant).T
    if bias is not None:
        expected += torch.from_numpy(bias).to(torch.bfloat16)
    torch.testing.assert_close(out[:ROWS], expected[:ROWS].to(torch.bfloat16))
    assert out[ROWS:].isnan().all()
    # As many bytes as files have: 16 bits a scale, where these hold it.
    small = sum(
        part.nbytes - (0 if kind == "8 bits" else part.scales.nbytes // 2)
        for part in weight.parts
        if isinstance(part, Packed)
    )
    floats = [part for part in weight.parts if isinstance(part, Float8)]
    # A scale for each output and 128 of its inputs, or 32 where the share begins within a block.
    step = 32 if "blocks" in kind else 128
    small += sum(part.values.nbytes + 4 * part.shape[0] * -(-inputs // step) for part in floats)
    assert made.transfer.nbytes == small + 2 * outputs * biased


def test_only_what_the_device_multiplies_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    capability = [(8, 9)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert all(stay_packed([matrix], gpu, bf16) for matrix in MATRICES.values())
    one = MATRICES["of AWQ"]
    refused: list[tuple[Any, ...]] = [
        (one, CPU, bf16),
        (one, gpu, torch.float32),
        (Matrix((*one.parts, Dense(np.zeros((16, INPUTS))))), gpu, bf16),
        (Matrix((packed(16, 8, 48),)), gpu, bf16),
    ]
    for given in refused:
        weight, *where = given
        assert not stay_packed([weight], *where)
    capability[0] = (8, 6)
    floats = [kind for kind in MATRICES if not stay_packed([MATRICES[kind]], gpu, bf16)]
    assert floats == [kind for kind in MATRICES if "floats" in kind]


def test_shares_of_ranks_are_cut_between_groups() -> None:
    """They add up to the whole, and a cut within a group is refused by name."""
    whole, made = packed(16, 4, 32, "zeros"), parts()
    x = torch.randn(8, INPUTS, generator=torch.Generator().manual_seed(0))
    total = torch.zeros(8, 16)
    for columns in (slice(0, 64), slice(64, INPUTS)):
        cut = shares([Matrix((whole.columns(columns),))], made.transfer)
        linear = WeightOnlyLinear(made, cut, None, reduce=False)
        made.loaded()
        out = torch.zeros(8, 16)
        linear(buffer(x[:, columns]), buffer(out), 8)
        total += out
    torch.testing.assert_close(total, x @ torch.from_numpy(whole.dequantized()).T)
    with pytest.raises(ConfigError, match="groups of 32 inputs, which 'tensor_parallel'"):
        whole.columns(slice(0, 80))


@pytest.mark.parametrize(
    "kind",
    [
        "float-quantized, channels",
        *(
            pytest.param(kind, marks=pytest.mark.slow)
            for kind in FORMATS
            if kind.startswith(("pack", "int", "awq", "gptq"))
        ),
    ],
)
def test_a_folder_of_them_says_what_its_dense_twin_says(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read as on the CPU, multiplied as on a GPU: the same tokens, in float32."""
    folders = twins(tmp_path, "llama", kind)
    made: list[WeightOnlyLinear] = []

    def noted(*given: Any, **named: Any) -> WeightOnlyLinear:
        made.append(WeightOnlyLinear(*given, **named))
        return made[-1]

    monkeypatch.setattr(layers, "WeightOnlyLinear", noted)
    has_products(monkeypatch)
    ours, twin = (GreedyRunner(folder) for folder in folders)
    # Of two layers; weights of inputs whose groups are in no order are dense.
    assert len(made) == (0 if "desc_act" in kind else 2 * 4)
    for prompt in prompts(3, longest=20):
        logits, expected = logits_after(ours, prompt, 1000), logits_after(twin, prompt, 1000)
        torch.testing.assert_close(logits, expected, rtol=1e-3, atol=1e-3)
        assert logits.argmax() == expected.argmax()

"""Quantized experts as a GPU has them, by references: they stay as files have them."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch

from pyengine.kernels.layers.grouped_block import grouped_block_reference
from pyengine.kernels.layers.grouped_packed import grouped_packed_reference
from pyengine.kernels.layers.packed_tensor import PackedTensor
from pyengine.model.torch.device.ops import REFERENCES
from pyengine.model.torch.device.transfer import Transfer
from pyengine.model.torch.layers import parts
from pyengine.model.torch.layers.experts.float8 import Float8ExpertLinear, are_float8
from pyengine.model.torch.layers.experts.layers import PackedExpertLinear
from pyengine.model.torch.layers.packed_weights import stay_packed
from pyengine.model.weights.float8 import Float8
from pyengine.model.weights.matrix import Dense, Matrix, Part
from pyengine.model.weights.microscaled import Microscaled
from tests.distributed.test_parallel_model import logits
from tests.distributed.thread_ranks import together
from tests.model import packing
from tests.model.families import make_family
from tests.model.llamas import Loop, prompts
from tests.model.quantized import Pack, has_products, make_twins
from tests.model.test_block_linear import blocks
from tests.model.test_mxfp4 import twins
from tests.model.test_quantized_folders import AWQ, FP8, GPTQ
from tests.model.test_torch_model import logits_after
from tests.model.test_weight_only_linear import packed
from tests.model.torch_steps import GreedyRunner

__all__ = ["twins"]  # a fixture

CPU, EXPERTS, INPUTS = torch.device("cpu"), 3, 192


def microscaled(outputs: int) -> Microscaled:
    random = np.random.default_rng(outputs)
    values = random.integers(0, 256, (outputs, INPUTS // 2), dtype=np.uint8)
    return Microscaled(values, random.integers(118, 124, (outputs, INPUTS // 32), dtype=np.uint8))


def float8(outputs: int, first: int = 0) -> Float8:
    return blocks(outputs, (128, 128), (0, first), seed=outputs).columns(slice(0, INPUTS))


def by_output(outputs: int) -> Float8:
    return blocks(outputs, (1, 320), seed=outputs).columns(slice(0, INPUTS))


# Gates and ups of an expert.
LAYERS: dict[str, tuple[Part, Part]] = {
    "MXFP4": (microscaled(40), microscaled(41)),
    "AWQ": (packed(24, 4, 64, "zeros"), packed(25, 4, 64, "zeros")),
    "8 bits": (packed(24, 8, 32), packed(25, 8, 32)),
    "mixed": (packed(24, 4, 32, "minimums"), packed(25, 8, 16)),
    "FP8 in blocks": (float8(300), float8(20)),
    "FP8, a rank's inputs": (float8(30, first=96), float8(20, first=96)),
    "FP8 by output": (by_output(30), by_output(20)),
    "FP8, rows as they are": (
        replace(float8(30), activations=None),
        replace(float8(20), activations=None),
    ),
    "FP8 beside integers": (float8(30), packed(20, 8, 32)),
    "FP8 of several steps": (float8(30), float8(20, first=96)),
}
WHOLE = ("FP8 in blocks", "FP8, a rank's inputs", "FP8 by output")
"""Of which rows become 8 bits too."""


def layer(kind: str) -> list[Matrix]:
    """Of each expert, no two of which are alike."""
    return [Matrix(tuple(each.reordered(np.roll(np.arange(each.shape[0]), shift))
                         for each in LAYERS[kind])) for shift in range(EXPERTS)]  # fmt: skip


@pytest.mark.parametrize("kind", [kind for kind in LAYERS if kind not in WHOLE])
@pytest.mark.parametrize("biased", [False, True])
def test_the_product_is_that_of_the_numbers_that_are_meant(kind: str, biased: bool) -> None:
    weights, transfer = layer(kind), Transfer(CPU, torch.bfloat16)
    outputs = weights[0].shape[0]
    generator = torch.Generator().manual_seed(0)
    biases = torch.randn(EXPERTS, outputs, generator=generator).bfloat16() if biased else None
    linear = PackedExpertLinear(REFERENCES, weights, biases, transfer)
    transfer.wait()
    x = torch.randn(7, INPUTS, generator=generator).bfloat16()
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    out = linear(x, torch.tensor([0, 0, 2, 2, 2, 2, 3]), ends)
    for row, expert in enumerate([0, 0, 2, 2, 2, 2]):
        # Weights are those of a dense layer, to the bit.
        meant = weights[expert].dequantized(np.dtype(ml_dtypes.bfloat16)).astype(np.float32)
        expected = torch.from_numpy(meant) @ x[row].float()
        if biases is not None:
            expected += biases[expert]
        torch.testing.assert_close(out[row], expected.bfloat16())
    # As many bytes as files have, but for scales, which are narrower, or those of more outputs.
    values = sum(part.values.nbytes for part in LAYERS[kind])  # type: ignore[attr-defined]
    scales = transfer.nbytes - EXPERTS * values
    assert 0 < scales <= EXPERTS * (0.25 if "mixed" in kind else 0.13) * values
    assert not are_float8(weights)


@pytest.mark.parametrize("kind", WHOLE)
@pytest.mark.parametrize("biased", [False, True])
def test_rows_become_8_bits_for_experts_of_8_bit_floats(kind: str, biased: bool) -> None:
    weights, transfer = layer(kind), Transfer(CPU, torch.bfloat16)
    assert are_float8(weights)
    outputs, step = weights[0].shape[0], 32 if "rank" in kind else 128
    generator = torch.Generator().manual_seed(0)
    biases = torch.randn(EXPERTS, outputs, generator=generator).bfloat16() if biased else None
    linear = Float8ExpertLinear(REFERENCES, weights, biases, transfer)
    transfer.wait()
    x = torch.randn(7, INPUTS, generator=generator)
    x = (x * (torch.arange(INPUTS) // step + 1)).bfloat16()
    x[6] = float("nan")  # of another rank's expert, where nothing was written
    rounded = torch.cat(
        [
            (numbers / scale).to(torch.float8_e4m3fn).float() * scale
            for numbers in x.float().split(step, 1)
            for scale in [numbers.abs().amax(1, keepdim=True) / 448]
        ],
        dim=1,
    )
    ends = torch.tensor([2, 2, 6], dtype=torch.int32)
    out = linear(x, torch.tensor([0, 0, 2, 2, 2, 2, 3]), ends).float()
    for row, expert in enumerate([0, 0, 2, 2, 2, 2]):
        meant = torch.from_numpy(weights[expert].dequantized(np.dtype(np.float32)))
        shift = 0 if biases is None else biases[expert].float()
        torch.testing.assert_close(out[row], meant @ rounded[row] + shift, rtol=0.01, atol=0.02)
        # And near to the product of the rows as they were: 4 bits of mantissa.
        exact = meant @ x[row].float() + shift
        assert (out[row] - exact).norm() < 0.05 * exact.norm()


def test_the_experts_of_gpt_oss_120b_take_57_gibibytes() -> None:
    """On the device that has no memory; 36 layers of 128."""
    transfer, nothing = Transfer(torch.device("meta"), torch.bfloat16), np.zeros((), np.uint8)
    for outputs in (2 * 2880, 2880):
        shapes = (outputs, 2880 // 2), (outputs, 2880 // 32)
        part = Microscaled(*(np.broadcast_to(nothing, shape) for shape in shapes))
        PackedExpertLinear(REFERENCES, [Matrix((part,))] * 128, None, transfer)
    assert transfer.nbytes == 128 * 3 * 2880 * 2880 * (4 + 8 / 32) / 8
    assert round(36 * transfer.nbytes / 2**30) == 57


def test_only_what_the_device_multiplies_stays_so(monkeypatch: pytest.MonkeyPatch) -> None:
    gpu, bf16 = torch.device("cuda"), torch.bfloat16
    capability = [(8, 9)]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability[0])
    assert all(stay_packed(layer(kind), gpu, bf16) for kind in LAYERS)
    assert stay_packed(layer("MXFP4"), gpu, torch.float16)
    one, other = layer("MXFP4"), layer("AWQ")
    dense = Matrix((Dense(np.zeros((81, INPUTS), np.float32)),))
    refused: list[tuple[Any, ...]] = [
        (one, CPU, bf16),
        (one, gpu, torch.float32),
        ([*one, dense], gpu, bf16),
        ([*one, *other], gpu, bf16),
        ([Matrix((packed(16, 8, 48),))], gpu, bf16),
    ]
    for given in refused:
        assert not stay_packed(*given)
    capability[0] = (8, 6)
    assert not stay_packed(layer("FP8 in blocks"), gpu, bf16)
    assert stay_packed(one, gpu, bf16)


@pytest.fixture
def products(monkeypatch: pytest.MonkeyPatch) -> list[PackedTensor]:
    """Quantized weights stay so, as on a GPU; the list has the experts that were multiplied by."""
    made: list[PackedTensor] = []

    def noted(x: torch.Tensor, weight: PackedTensor, *more: Any) -> None:
        made.append(weight)
        grouped_packed_reference(x, weight, *more)

    def noted_small(x: torch.Tensor, scales: torch.Tensor, weight: Any, *more: Any) -> None:
        made.append(weight)
        grouped_block_reference(x, scales, weight, *more)

    has_products(monkeypatch)
    ops = replace(REFERENCES, grouped_packed=noted, grouped_block=noted_small)
    monkeypatch.setattr(parts, "torch_ops", lambda _device: ops)
    return made


def test_gpt_oss_says_what_its_dense_twin_says(
    twins: tuple[Path, Path], products: list[PackedTensor]
) -> None:
    asked = prompts(4)
    ours, dense = (GreedyRunner(folder) for folder in twins)
    expected = Loop(dense).generate(asked, 12)
    assert not products
    assert Loop(ours).generate(asked, 12) == expected
    assert {(each.bits, each.floats, each.shape) for each in products} == {
        (4, True, (6, 128, 64)),
        (4, True, (6, 64, 64)),
    }
    # Of each number 28 bits less, 4.25 in place of 32.
    saved = dense.model.weight_bytes - ours.model.weight_bytes
    assert saved == 4 * 6 * 3 * 64 * 64 * (32 - 4.25) / 8


@pytest.mark.parametrize("divided", [True, False], ids=["experts divided", "experts shared"])
def test_two_ranks_have_the_logits_of_one(
    divided: bool, twins: tuple[Path, Path], products: list[PackedTensor]
) -> None:
    alone = logits(twins[0], None)
    first, second = together(2, lambda group: logits(twins[0], group, expert_parallel=divided))
    assert first.equal(second)
    assert (first - alone).abs().max() < 1e-3 * alone.std()
    shares = {(3, 128, 64), (3, 64, 64)} if divided else {(6, 64, 64), (6, 64, 32)}
    assert {each.shape for each in products} == {(6, 128, 64), (6, 64, 64)} | shares


@pytest.mark.parametrize(
    ("config", "pack", "bits"),
    [
        (AWQ, partial(packing.awq, group=16), 4),
        (GPTQ | {"bits": 8}, partial(packing.gptq, group=16, bits=8), 8),
    ],
    ids=["AWQ", "GPTQ"],
)
def test_other_formats_say_what_their_dense_twins_say(
    config: dict[str, Any], pack: Pack, bits: int, tmp_path: Path, products: list[PackedTensor]
) -> None:
    make_family(tmp_path / "model", "olmoe", intermediate_size=64)
    ours, dense = map(GreedyRunner, make_twins(tmp_path / "model", config, pack))
    for prompt in prompts(3, longest=20):
        got, expected = (logits_after(runner, prompt, 1000) for runner in (ours, dense))
        torch.testing.assert_close(got, expected, rtol=1e-3, atol=1e-3)
    assert {(each.bits, each.floats) for each in products} == {(bits, False)}


@pytest.mark.parametrize("divided", [True, False], ids=["experts divided", "experts shared"])
def test_a_mixture_of_8_bit_floats_says_nearly_what_its_dense_twin_says(
    divided: bool, tmp_path: Path, products: list[PackedTensor]
) -> None:
    """And two ranks what one says, as their shares end where blocks do."""
    make_family(tmp_path / "model", "olmoe", intermediate_size=64)
    pack = partial(packing.block_fp8, side=32)
    folders = make_twins(tmp_path / "model", FP8, pack)
    ours, dense = map(GreedyRunner, folders)
    for prompt in prompts(3, longest=20):
        got, expected = (logits_after(runner, prompt, 1000) for runner in (ours, dense))
        assert torch.cosine_similarity(got, expected, dim=0) > 0.95
        assert not got.equal(expected)
    assert {(each.bits, each.floats, each.group) for each in products} == {(8, True, 32)}
    alone = logits(folders[0], None)
    first, second = together(2, lambda group: logits(folders[0], group, expert_parallel=divided))
    assert first.equal(second)
    # What one rank rounds to 8 bits differs from what the other does in its last places.
    assert (first - alone).abs().max() < 0.1 * alone.std()

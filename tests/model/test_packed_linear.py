"""Layers of quantized weights compute what the weights mean, and refuse what they cannot be."""

from typing import Any

import numpy as np
import pytest

from pyengine._core import CpuKernels, CpuLinear, CpuTensor
from pyengine.model.cpu.executor import run_once
from pyengine.model.weights.matrix import Packed

OUTPUTS, INPUTS = 70, 256


def packed(bits: int, group: int, offset: str = "") -> Packed:
    """Random weights."""
    random = np.random.default_rng(bits * group)
    groups = (OUTPUTS, INPUTS // group)
    return Packed(
        random.integers(0, 256, (OUTPUTS, INPUTS * bits // 8), np.uint8),
        random.uniform(-0.1, 0.1, groups).astype(np.float32),
        random.integers(0, 1 << bits, groups, np.uint8) if offset == "zeros" else None,
        random.uniform(-1, 1, groups).astype(np.float32) if offset == "minimums" else None,
        bits,
        group,
    )


def layer(weights: Packed, **changed: Any) -> CpuLinear:
    """The layer of ``weights``."""

    def tensor(array: Any) -> CpuTensor | None:
        return None if array is None else CpuTensor(array)

    arguments = {
        "values": CpuTensor(weights.values),
        "scales": CpuTensor(weights.scales),
        "zeros": tensor(weights.zeros),
        "minimums": tensor(weights.minimums),
        "bits": weights.bits,
        "group": weights.group,
    }
    return CpuLinear.packed(**(arguments | changed))


@pytest.mark.parametrize("offset", ["", "zeros", "minimums"])
@pytest.mark.parametrize("group", [16, 32, 64, 128, INPUTS])
@pytest.mark.parametrize("bits", [4, 8])
def test_a_layer_computes_what_its_weights_mean(bits: int, group: int, offset: str) -> None:
    weights = packed(bits, group, offset)
    meant = weights.dequantized().astype(np.float64)
    x = np.random.default_rng(1).uniform(-1, 1, (3, INPUTS)).astype(np.float32)
    out = np.zeros((3, OUTPUTS), np.float32)
    with run_once(CpuKernels(1), 3) as program:
        program.linear(layer(weights), CpuTensor(x), CpuTensor(out))
    # Activations are rounded to steps of 1 / 127 of the largest.
    bound = np.abs(meant).sum(1) * 0.5001 / 127 + 1e-3
    assert (np.abs(out - x @ meant.T) <= bound).all()


def test_impossible_packing_is_refused_by_name() -> None:
    weights = packed(4, 32)
    scales = CpuTensor(np.ones((OUTPUTS, 2), np.float32))
    floats = CpuTensor(np.ones((OUTPUTS, INPUTS // 2), np.float32))
    zeros = CpuTensor(np.zeros((OUTPUTS, INPUTS // 32), np.uint8))
    for changed, message in (
        ({"bits": 5}, "4 or 8 bits"),
        ({"group": 48}, "16, 32, 64 or 128"),
        ({"scales": scales}, "scales must be"),
        ({"values": floats}, "values must be Uint8"),
        ({"zeros": zeros, "minimums": CpuTensor(weights.scales)}, "not both"),
    ):
        with pytest.raises(ValueError, match=message):
            layer(weights, **changed)


@pytest.mark.parametrize(
    ("values", "exponents", "message"),
    [
        ((4, 24), (4, 1), "48 inputs are not whole groups of 32"),
        ((4, 32), (4, 1), r"exponents must be \[4, 2\], not \[4, 1\]"),
        ((4, 32), None, "an exponent of 255 means no number"),
    ],
)
def test_microscaled_weights_that_cannot_be_are_refused(
    values: tuple[int, int], exponents: tuple[int, int] | None, message: str
) -> None:
    powers = np.zeros(exponents, np.uint8) if exponents else np.full((4, 2), 255, np.uint8)
    with pytest.raises(ValueError, match=message):
        CpuLinear.microscaled(CpuTensor(np.zeros(values, np.uint8)), CpuTensor(powers))

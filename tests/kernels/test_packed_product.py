"""Products with weights of 4 and 8 bits, in Triton and in torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.packed_product import packed_product, packed_product_reference
from pyengine.kernels.layers.packed_tensor import PackedTensor
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, random, rows_of


def drawn(
    seed: int,
    bits: int,
    group: int,
    width: int,
    inputs: int,
    kind: str,
    scales: torch.dtype,
    layers: tuple[int, ...] = (),
) -> PackedTensor:
    """Weights at random; ``kind``: symmetric, zeros, minimums, floats, or powers: floats whose
    scales are powers of two.
    """
    generator = np.random.default_rng(seed)
    floats = kind in ("floats", "powers")
    octets = generator.integers(0, 256, (*layers, width, inputs * bits // 8), dtype=np.uint8)
    if floats and bits == 8:
        octets[octets & 127 == 127] = 0  # NaN
    values = torch.from_numpy(octets).to(DEVICE)
    if bits == 8 and kind not in ("zeros", "minimums"):
        values = values.view(torch.float8_e4m3fn if floats else torch.int8)
    shape = *layers, -(-inputs // group), width
    zeros = torch.from_numpy(generator.integers(0, 1 << bits, shape, dtype=np.uint8)).to(DEVICE)
    exponents = torch.from_numpy(generator.integers(119, 127, shape, dtype=np.uint8)).to(DEVICE)
    return PackedTensor(
        values,
        exponents if kind == "powers" else random(generator, *shape, dtype=scales) / (1 << bits),
        zeros if kind == "zeros" else None,
        random(generator, *shape, dtype=torch.float32) if kind == "minimums" else None,
        bits,
        group,
        floats,
    )


KINDS = ["symmetric", "zeros", "minimums", "floats", "powers"]


@settings(max_examples=16, deadline=None)
@given(
    rows=st.sampled_from([1, 3, 16, 17, 64, 65, 130]),
    width=st.integers(1, 140),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 64, 128, 256, 0]),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(KINDS),
    dtype=st.sampled_from(DTYPES),
    scales=st.sampled_from(DTYPES),
    biased=st.booleans(),
    gap=st.integers(0, 3),
)
def test_triton_is_the_reference(
    rows: int, width: int, groups: int, group: int, bits: int, kind: str, dtype: torch.dtype,
    scales: torch.dtype, biased: bool, gap: int,
) -> None:  # fmt: skip
    inputs = groups * (group or 38)
    weight = drawn(rows + width, bits, group or inputs, width, inputs, kind, scales)
    generator = np.random.default_rng(rows * width)
    x = rows_of(random(generator, rows, inputs, dtype=dtype), gap)
    bias = random(generator, width, dtype=dtype) if biased else None
    out = rows_of(torch.zeros(rows, width, dtype=dtype, device=DEVICE), gap)
    given_ = x, weight, bias, out
    ours, theirs = both(packed_product, packed_product_reference, *given_)
    floor = 1e-5 * float(theirs[-1].float().abs().max())
    assert_close(ours[-1], theirs[-1], 8 if dtype == torch.float32 else 1, floor)


@pytest.mark.parametrize("exponent", [0, 1, 126, 252, 255])
def test_small_floats_are_those_of_their_standard(exponent: int) -> None:
    """All sixteen, from the smallest scale to the largest by which 6 is finite, and that of NaN."""
    codes = torch.arange(16, dtype=torch.uint8, device=DEVICE).repeat(2)
    scales = torch.full((1, 1), exponent, dtype=torch.uint8, device=DEVICE)
    values = (codes[0::2] | codes[1::2] << 4)[None]
    weight = PackedTensor(values, scales, None, None, 4, 32, floats=True)
    magnitudes = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6], dtype=torch.float64)
    meant = torch.cat((magnitudes, -magnitudes)).repeat(2) * 2.0 ** (exponent - 127)
    if exponent == 255:
        meant[:] = float("nan")
    assert_close(weight.dequantized(torch.float32).cpu()[0], meant.float(), 0)
    # A row of one number gives the weight that it meets.
    x, out = torch.eye(32, device=DEVICE), torch.zeros(32, 1, device=DEVICE)
    packed_product(x, weight, None, out)
    assert_close(out[:, 0].cpu(), meant.float(), 0)


def test_the_last_group_of_8_bit_floats_may_be_cut_short() -> None:
    weight = drawn(0, 8, 128, 20, 200, "floats", torch.float32)
    x = random(np.random.default_rng(1), 5, 200, dtype=torch.float32)
    out = torch.zeros(5, 20, device=DEVICE)
    ours, theirs = both(packed_product, packed_product_reference, x, weight, None, out)
    assert_close(ours[-1], theirs[-1], 8, 1e-4)


def test_wrong_shapes_are_refused() -> None:
    x, out = torch.zeros(2, 96, device=DEVICE), torch.zeros(2, 4, device=DEVICE)
    weight = drawn(0, 8, 32, 4, 96, "symmetric", torch.float32)
    zeros = drawn(0, 4, 32, 4, 96, "zeros", torch.float32)
    for product in (packed_product, packed_product_reference):
        with pytest.raises(ValueError, match="out"):
            product(x, weight, None, out[:1])
        with pytest.raises(ValueError, match="groups of 48"):
            product(x, drawn(0, 8, 48, 4, 96, "zeros", torch.float32), None, out)
        with pytest.raises(ValueError, match="must not be"):
            product(x, replace(weight, values=weight.values.byte()), None, out)
        with pytest.raises(ValueError, match="must not be"):
            product(x, replace(weight, floats=True), None, out)
        with pytest.raises(ValueError, match="neither zeros nor minimums"):
            product(x, replace(zeros, floats=True), None, out)
        with pytest.raises(ValueError, match="as x is"):
            product(x.half(), weight, None, out)

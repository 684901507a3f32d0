"""Products with integers of 4 and 8 bits, in Triton and in torch."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine.kernels.layers.packed_product import (
    PackedTensor,
    packed_product,
    packed_product_reference,
)
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, random, rows_of


def drawn(
    seed: int, bits: int, group: int, width: int, inputs: int, kind: str, scales: torch.dtype
) -> PackedTensor:
    """Weights at random; ``kind``: symmetric, zeros or minimums."""
    generator = np.random.default_rng(seed)
    octets = generator.integers(0, 256, (width, inputs * bits // 8), dtype=np.uint8)
    values = torch.from_numpy(octets).to(DEVICE)
    shape = inputs // group, width
    zeros = torch.from_numpy(generator.integers(0, 1 << bits, shape, dtype=np.uint8)).to(DEVICE)
    return PackedTensor(
        values.view(torch.int8) if bits == 8 and kind == "symmetric" else values,
        random(generator, *shape, dtype=scales) / (1 << bits),
        zeros if kind == "zeros" else None,
        random(generator, *shape, dtype=torch.float32) if kind == "minimums" else None,
        bits,
        group,
    )


@settings(max_examples=16, deadline=None)
@given(
    rows=st.sampled_from([1, 3, 16, 17, 64, 65, 130]),
    width=st.integers(1, 140),
    groups=st.integers(1, 5),
    group=st.sampled_from([16, 32, 64, 128, 256, 0]),
    bits=st.sampled_from([4, 8]),
    kind=st.sampled_from(["symmetric", "zeros", "minimums"]),
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


def test_what_does_not_fit_is_refused() -> None:
    x, out = torch.zeros(2, 96, device=DEVICE), torch.zeros(2, 4, device=DEVICE)
    weight = drawn(0, 8, 32, 4, 96, "symmetric", torch.float32)
    for product in (packed_product, packed_product_reference):
        with pytest.raises(ValueError, match="out"):
            product(x, weight, None, out[:1])
        with pytest.raises(ValueError, match="groups of 48"):
            product(x, drawn(0, 8, 48, 4, 96, "zeros", torch.float32), None, out)
        with pytest.raises(ValueError, match="must not be"):
            product(x, replace(weight, values=weight.values.byte()), None, out)
        with pytest.raises(ValueError, match="as x is"):
            product(x.half(), weight, None, out)

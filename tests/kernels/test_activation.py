"""The gated activation in Triton, in torch and in Rust."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import CpuKernels
from pyengine.kernels.layers.activation import KINDS, gated, gated_reference
from pyengine.model.cpu.executor import run_once
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, cpu_tensor, random, rows_of

# The exponential is good to some units in the last place of float32, the way over the division
# included; each of two roundings to a narrow type may fall to the other side.
UNITS = {torch.float32: 16, torch.bfloat16: 2, torch.float16: 2}
# Rust's is 0 below -87.3, and what is subnormal on the way is worth less of its digits.
FLOOR = 1e-35
# The tangent and the error function of torch's GELU leave nothing of a gate far below 0.
GELU_FLOOR = 1e-4
FLOORS = {torch.float32: FLOOR, torch.bfloat16: FLOOR, torch.float16: 2.0**-24}


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 4),
    width=st.integers(1, 1500),
    gap=st.integers(0, 3),
    dtype=st.sampled_from(DTYPES),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_triton_is_the_reference(
    rows: int, width: int, gap: int, dtype: torch.dtype, kind: str
) -> None:
    generator = np.random.default_rng(width)
    gate_up = rows_of(random(generator, rows, 2 * width, dtype=dtype) * 4, gap)
    out = rows_of(torch.zeros(rows, width, dtype=dtype, device=DEVICE), 2 * gap)
    limit = 3.0 if kind == "clamped_swiglu" else None
    ours, theirs = both(gated, gated_reference, gate_up, out, kind, limit)
    floor = GELU_FLOOR if kind.startswith("gelu") else FLOORS[dtype]
    assert_close(ours[1], theirs[1], UNITS[dtype], floor)


@pytest.mark.parametrize("kernel", [gated, gated_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_the_numbers_of_rust(kind: str, dtype: torch.dtype, kernel: object) -> None:
    limit = 7.0 if kind == "clamped_swiglu" else None
    gate = torch.linspace(-100, 100, 1000)
    up = random(np.random.default_rng(3), 1000, dtype=torch.float32).cpu()
    gate_up = torch.cat((gate, up))[None].to(dtype)
    out, theirs = (
        torch.zeros(1, 1000, dtype=dtype, device=DEVICE),
        torch.zeros(1, 1000, dtype=dtype),
    )
    kernel(gate_up.to(DEVICE), out, kind, limit)  # type: ignore[operator]
    with run_once(CpuKernels(1), 1) as program:
        program.gated(kind, cpu_tensor(gate_up), cpu_tensor(theirs), limit)
    floor = GELU_FLOOR if kind.startswith("gelu") else FLOOR
    assert_close(out.cpu(), theirs, UNITS[dtype], floor)


@pytest.mark.parametrize("kernel", [gated, gated_reference])
def test_extremes(kernel: object) -> None:
    nan, inf = float("nan"), float("inf")
    gate_up = torch.tensor([[nan, inf, 1e30, -1e30, 0.0, 1.0, 2.0, 2.0, 2.0, nan]], device=DEVICE)
    out = torch.zeros(1, 5, device=DEVICE)
    kernel(gate_up, out)  # type: ignore[operator]
    expected = torch.tensor([[nan, inf, 2e30, -0.0, nan]])
    torch.testing.assert_close(out.cpu(), expected, equal_nan=True)


@pytest.mark.parametrize("kernel", [gated, gated_reference])
def test_arguments_are_checked(kernel: object) -> None:
    gate_up = torch.zeros(2, 8, device=DEVICE)
    for out, message in (
        (torch.zeros(2, 5, device=DEVICE), r"\[2, 8\], the output \[2, 5\]"),
        (torch.zeros(2, 4, device=DEVICE, dtype=torch.float16), "one type"),
        (torch.zeros(4, 2, device=DEVICE).T, "one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(gate_up, out)  # type: ignore[operator]

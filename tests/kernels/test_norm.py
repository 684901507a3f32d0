"""Root mean square normalization in Triton, in torch and in Rust."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pyengine._core import CpuKernels
from pyengine.kernels.layers.norm import add_rms_norm, add_rms_norm_reference
from pyengine.model.cpu.executor import run_once
from tests.kernels.backends import DEVICE
from tests.kernels.pairs import DTYPES, assert_close, both, cpu_tensor, random, rows_of

# Float32 differs by the order of the sum and the fusing of multiplications: some units in the last
# place. In a narrow type each of two roundings may fall to the other side.
UNITS = {torch.float32: 16, torch.bfloat16: 2, torch.float16: 2}


@settings(max_examples=25, deadline=None)
@given(
    rows=st.integers(0, 5),
    width=st.integers(1, 300),
    gap=st.integers(0, 3),
    branched=st.booleans(),
    dtype=st.sampled_from(DTYPES),
)
def test_triton_is_the_reference(
    rows: int, width: int, gap: int, branched: bool, dtype: torch.dtype
) -> None:
    generator = np.random.default_rng(width)
    residual = rows_of(random(generator, rows, width, dtype=dtype), gap)
    branch = rows_of(random(generator, rows, width, dtype=dtype), 2 * gap) if branched else None
    weight = random(generator, width, dtype=dtype)
    out = rows_of(torch.zeros_like(residual), 3 * gap)
    ours, theirs = both(add_rms_norm, add_rms_norm_reference, residual, branch, weight, 1e-5, out)
    assert_close(ours[0], theirs[0], 0)
    assert_close(ours[4], theirs[4], UNITS[dtype])
    if not branched:
        assert_close(ours[0], residual, 0)


@pytest.mark.parametrize("kernel", [add_rms_norm, add_rms_norm_reference])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_numbers_of_rust(dtype: torch.dtype, kernel: Any) -> None:
    generator = np.random.default_rng(1)
    residual, branch = (random(generator, 3, 576, dtype=dtype).cpu() for _ in range(2))
    weight = random(generator, 576, dtype=dtype).cpu()
    given = [t.to(DEVICE, copy=True) for t in (residual, branch, weight)]
    out = torch.zeros_like(given[0])
    kernel(given[0], given[1], given[2], 1e-6, out)
    theirs = torch.zeros_like(residual)
    tensors = cpu_tensor(residual), cpu_tensor(branch), cpu_tensor(weight)
    with run_once(CpuKernels(1), 3) as program:
        program.add_rms_norm(*tensors, 1e-6, cpu_tensor(theirs))
    assert_close(given[0].cpu(), residual, 0)
    assert_close(out.cpu(), theirs, UNITS[dtype])


def test_the_output_may_lie_where_the_branch_was() -> None:
    generator = np.random.default_rng(2)
    residual, branch = (random(generator, 2, 40, dtype=torch.float32) for _ in range(2))
    weight, out = torch.ones(40, device=DEVICE), torch.zeros(2, 40, device=DEVICE)
    add_rms_norm(residual.clone(), branch, weight, 1e-5, out)
    add_rms_norm(residual, branch, weight, 1e-5, branch)
    assert_close(branch, out, 0)


@pytest.mark.parametrize("kernel", [add_rms_norm, add_rms_norm_reference])
def test_arguments_are_checked(kernel: Any) -> None:
    def tensors(width: int) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.zeros(2, width, device=DEVICE), torch.zeros(width, device=DEVICE)

    residual, weight = tensors(8)
    for arguments, message in (
        ((residual, residual.half(), weight), "one type"),
        ((residual, None, tensors(9)[1]), "weight must be"),
        ((tensors(0)[0], None, tensors(0)[1]), "rows of 0"),
        ((torch.zeros(8, 2, device=DEVICE).T, None, weight), "rows in one piece"),
    ):
        with pytest.raises(ValueError, match=message):
            kernel(*arguments, 1e-5, torch.zeros_like(arguments[0]))

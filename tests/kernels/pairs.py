"""What the tests of a kernel and its reference share: types, tensors, and how close is close."""

from typing import Any

import numpy as np
import torch

from pyengine._core import CpuTensor
from tests.kernels.backends import DEVICE

DTYPES = [torch.float32, torch.bfloat16, torch.float16]

# Two roundings to the type, before each of which float32 may differ in its last places: a number
# that lay beside the middle of two may go to the other at each of them.
UNITS = {
    torch.float32: 2.0**-23,
    torch.bfloat16: 2.0**-7,
    torch.float16: 2.0**-10,
    torch.float8_e4m3fn: 2.0**-3,
}
"""The unit in the last place of 1, by type."""


def random(generator: np.random.Generator, *shape: int, dtype: torch.dtype) -> torch.Tensor:
    """Normal numbers on the device."""
    return torch.from_numpy(generator.normal(0, 1, shape)).to(DEVICE, dtype)


def rows_of(tensor: torch.Tensor, gap: int) -> torch.Tensor:
    """A copy whose rows lie ``gap`` numbers apart, as a part of a wider buffer's do."""
    wide = tensor.new_full((tensor.shape[0], tensor.shape[1] + gap), float("nan"))
    wide[:, : tensor.shape[1]] = tensor
    return wide[:, : tensor.shape[1]]


def assert_close(got: torch.Tensor, expected: torch.Tensor, units: float, floor: float = 0) -> None:
    """Equal within ``units`` in the last place of the type, or within ``floor``."""
    assert got.dtype == expected.dtype
    unit = UNITS[got.dtype]
    torch.testing.assert_close(
        got.double(), expected.double(), rtol=units * unit, atol=floor, equal_nan=True
    )


def cpu_tensor(tensor: torch.Tensor) -> CpuTensor:
    """A contiguous tensor on the CPU as the Rust kernels see it; shares its memory."""
    bits = tensor.view(torch.int16) if tensor.dtype == torch.bfloat16 else tensor
    return CpuTensor(bits.numpy())


def both(kernel: Any, reference: Any, *given: Any) -> tuple[list[Any], list[Any]]:
    """Call both with copies of the arguments; the tensors among these afterwards.

    Copies keep their strides; a test that reads the base of one can check that the memory beside
    the tensor's rows is unchanged.
    """
    ours, theirs = [[_copy(each) for each in given] for _ in range(2)]
    kernel(*ours)
    reference(*theirs)
    return ours, theirs


def _copy(value: Any) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    storage = value.untyped_storage().clone()
    copy = torch.empty(0, dtype=value.dtype, device=value.device)
    return copy.set_(storage, value.storage_offset(), value.shape, value.stride())

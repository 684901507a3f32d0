"""Noise and weights have the same bits in Rust, in torch and in Triton."""

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from numpy.typing import NDArray

from pyengine.kernels.sampling import noise
from pyengine.kernels.sampling import reference as sampling_reference
from tests.kernels.backends import DEVICE

COUNT = 1 << 16
NUMBERS = np.arange(COUNT, dtype=np.uint64)
WORDS = [NUMBERS * 2654435761 & 0xFFFFFFFF, 0xFFFFFFFF - NUMBERS * 65537]
EXPONENTS = NUMBERS.astype(np.float32) * np.float32(-90 / COUNT)

# As in the test of kernels/cpu/src/random.rs of the same name.
EXPONENTIALS, WEIGHTS = [4543582704416069629, 4579620823227422897], 1456959801018675116
NOISE = 9237823355830105533


def fingerprint(numbers: torch.Tensor) -> int:
    """A sum over the bits of 32-bit numbers that depends on their order."""
    bits = numbers.cpu().numpy()
    bits = bits.view(np.uint32) if bits.dtype == np.float32 else bits
    return int((bits.astype(np.uint64) * (2 * NUMBERS + 1)).sum(dtype=np.uint64))


def words(values: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int64)).to(DEVICE)


def test_the_bits_that_every_device_has() -> None:
    assert [fingerprint(sampling_reference.exponential(words(w))) for w in WORDS] == EXPONENTIALS
    exponents = torch.from_numpy(EXPONENTS).to(DEVICE)
    assert fingerprint(sampling_reference.exp(exponents)) == WEIGHTS
    seed = torch.tensor([0x0123456789ABCDEF], device=DEVICE)
    position = torch.tensor([(3 << 32) + 1], device=DEVICE)
    assert fingerprint(sampling_reference.noise_words(seed, position, COUNT)[0]) == NOISE


@triton.jit
def both(words_ptr, exponents_ptr, exponentials_ptr, weights_ptr, block: tl.constexpr):
    at = tl.program_id(0) * block + tl.arange(0, block)
    word = tl.load(words_ptr + at).to(tl.uint32)
    tl.store(exponentials_ptr + at, noise.exponential(word))
    tl.store(weights_ptr + at, noise.exp(tl.load(exponents_ptr + at)))


def test_the_bits_in_triton() -> None:
    exponents = torch.from_numpy(EXPONENTS).to(DEVICE)
    exponentials, weights = torch.empty_like(exponents), torch.empty_like(exponents)
    for given, expected in zip(WORDS, EXPONENTIALS, strict=True):
        both[(4,)](
            words(given), exponents, exponentials, weights,
            block=COUNT // 4, enable_fp_fusion=False,
        )  # fmt: skip
        assert fingerprint(exponentials) == expected
        assert fingerprint(weights) == WEIGHTS

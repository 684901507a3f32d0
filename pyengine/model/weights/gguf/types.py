"""The types of GGUF's tensors: blocks of numbers, and what they are as parts of a matrix.

What the bytes of a block mean is ggml's (ggml-common.h, ggml-quants.c). A *super-block* of 256
numbers (the K types) has two scales in float16, which scales of 4 to 8 bits multiply.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine.model.weights.matrix import Dense, Packed, Part
from pyengine.model.weights.microscaled import Microscaled
from pyengine.model.weights.quantization.words import nibbles, packed_values

Blocks = NDArray[np.uint8]
"""uint8 [rows, blocks of a row, bytes of a block]."""


@dataclass(frozen=True)
class TensorType:
    """A type of tensors.

    Attributes:
        name: As ggml has it.
        numbers: Of a block.
        nbytes: Of a block.
        read: Makes a part of blocks.
    """

    name: str
    numbers: int
    nbytes: int
    read: Callable[[Blocks], Part]


def _floats(dtype: Any) -> Callable[[Blocks], Dense]:
    def read(blocks: Blocks) -> Dense:
        return Dense(blocks.reshape(len(blocks), -1).view(dtype))

    return read


def _half(blocks: Blocks, at: int) -> NDArray[np.float32]:
    """The float16 at byte ``at`` of each block, [rows, blocks]."""
    halves = np.ascontiguousarray(blocks[..., at : at + 2]).view(np.float16)
    return halves[..., 0].astype(np.float32)


def _halves(octets: Blocks) -> Blocks:
    """The low halves of bytes, then the high ones: [..., n] -> [..., 2 n]."""
    return np.concatenate((octets & 15, octets >> 4), -1)


def _fifth_bits(octets: Blocks) -> Blocks:
    """The bits of [..., 4] as 16 or 0: [..., 32]."""
    return np.unpackbits(np.ascontiguousarray(octets), axis=-1, bitorder="little") << np.uint8(4)


def _packed(
    numbers: NDArray[Any],
    scales: NDArray[np.float32],
    bits: int,
    group: int,
    minimums: NDArray[np.float32] | None = None,
) -> Packed:
    """A part of numbers [rows, ...], scales and minimums [rows, ...]."""
    rows = len(numbers)
    return Packed(
        packed_values(numbers.reshape(rows, -1).view(np.uint8), bits),
        np.ascontiguousarray(scales.reshape(rows, -1)),
        None,
        None if minimums is None else np.ascontiguousarray(minimums.reshape(rows, -1)),
        bits,
        group,
    )


def _q4_0(blocks: Blocks) -> Packed:
    return _packed(_halves(blocks[..., 2:]), _half(blocks, 0), 4, 32)


def _q4_1(blocks: Blocks) -> Packed:
    return _packed(_halves(blocks[..., 4:]), _half(blocks, 0), 4, 32, -_half(blocks, 2))


def _q5_0(blocks: Blocks) -> Packed:
    numbers = _halves(blocks[..., 6:]) | _fifth_bits(blocks[..., 2:6])
    return _packed(numbers.view(np.int8) - np.int8(16), _half(blocks, 0), 8, 32)


def _q5_1(blocks: Blocks) -> Packed:
    numbers = _halves(blocks[..., 8:]) | _fifth_bits(blocks[..., 4:8])
    return _packed(numbers, _half(blocks, 0), 8, 32, -_half(blocks, 2))


def _q8_0(blocks: Blocks) -> Packed:
    return _packed(np.ascontiguousarray(blocks[..., 2:]), _half(blocks, 0), 8, 32)


def _k_scales(blocks: Blocks) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Scales and minimums of the eight groups of Q4_K and Q5_K, [rows, blocks, 8].

    Six bits each, in twelve bytes: four low ones of scales, four of minimums, and in the last four
    the low halves of the others, whose upper two bits are those of the first eight bytes.
    """
    first, second, third = (blocks[..., at : at + 4] for at in (4, 8, 12))
    scales = np.concatenate((first & 63, third & 15 | first >> 6 << np.uint8(4)), -1)
    minimums = np.concatenate((second & 63, third >> 4 | second >> 6 << np.uint8(4)), -1)
    return (
        _half(blocks, 0)[..., None] * scales.astype(np.float32),
        _half(blocks, 2)[..., None] * minimums.astype(np.float32),
    )


def _q4_k(blocks: Blocks) -> Packed:
    scales, minimums = _k_scales(blocks)
    numbers = _halves(blocks[..., 16:].reshape(*blocks.shape[:2], 4, 32))
    return _packed(numbers, scales, 4, 32, minimums)


def _q5_k(blocks: Blocks) -> Packed:
    scales, minimums = _k_scales(blocks)
    low = _halves(blocks[..., 48:].reshape(*blocks.shape[:2], 4, 32))
    places = np.arange(8, dtype=np.uint8)[:, None]
    high = blocks[..., None, 16:48] >> places & 1
    numbers = low.reshape(high.shape) | high << np.uint8(4)
    return _packed(numbers, scales, 8, 32, minimums)


def _q6_k(blocks: Blocks) -> Packed:
    shape = *blocks.shape[:2], 2, 4, 32
    low = _halves(blocks[..., :128].reshape(*blocks.shape[:2], 2, 64)).reshape(shape)
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[..., 128:192].reshape(*blocks.shape[:2], 2, 1, 32) >> places & 3
    numbers = (low | high << np.uint8(4)).view(np.int8) - np.int8(32)
    scales = np.ascontiguousarray(blocks[..., 192:208]).view(np.int8).astype(np.float32)
    return _packed(numbers, _half(blocks, 208)[..., None] * scales, 8, 16)


def _mxfp4(blocks: Blocks) -> Microscaled:
    codes = nibbles(_halves(blocks[..., 1:]))
    return Microscaled(codes.reshape(len(blocks), -1), blocks[..., 0])


TYPES = {
    0: TensorType("F32", 1, 4, _floats(np.float32)),
    1: TensorType("F16", 1, 2, _floats(np.float16)),
    2: TensorType("Q4_0", 32, 18, _q4_0),
    3: TensorType("Q4_1", 32, 20, _q4_1),
    6: TensorType("Q5_0", 32, 22, _q5_0),
    7: TensorType("Q5_1", 32, 24, _q5_1),
    8: TensorType("Q8_0", 32, 34, _q8_0),
    12: TensorType("Q4_K", 256, 144, _q4_k),
    13: TensorType("Q5_K", 256, 176, _q5_k),
    14: TensorType("Q6_K", 256, 210, _q6_k),
    30: TensorType("BF16", 1, 2, _floats(ml_dtypes.bfloat16)),
    39: TensorType("MXFP4", 32, 17, _mxfp4),
}
"""By their numbers in files."""

_OTHERS = {
    10: "Q2_K",
    11: "Q3_K",
    16: "IQ2_XXS",
    17: "IQ2_XS",
    18: "IQ3_XXS",
    19: "IQ1_S",
    20: "IQ4_NL",
    21: "IQ3_S",
    22: "IQ2_S",
    23: "IQ4_XS",
    29: "IQ1_M",
    34: "TQ1_0",
    35: "TQ2_0",
    40: "NVFP4",
}


def type_name(number: int) -> str:
    """The name of a type, supported or not."""
    return TYPES[number].name if number in TYPES else _OTHERS.get(number, str(number))

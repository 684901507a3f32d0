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

from pyengine.errors import ModelLoadError
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
        numbers: How many numbers a block has.
        nbytes: How many bytes a block has.
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


def _q2_k(blocks: Blocks) -> Packed:
    scales, octets = blocks[..., :16], blocks[..., 16:80]
    numbers = _pairs_of_bits(octets)
    return _packed(
        numbers,
        _half(blocks, 80)[..., None] * (scales & 15).astype(np.float32),
        4,
        16,
        _half(blocks, 82)[..., None] * (scales >> 4).astype(np.float32),
    )


def _q3_k(blocks: Blocks) -> Packed:
    places = np.arange(8, dtype=np.uint8).reshape(2, 4, 1)
    high = blocks[..., None, None, :32] >> places & 1
    # 4 is subtracted where that bit is not set, and 8 are added as symmetric values have them.
    numbers = _pairs_of_bits(blocks[..., 32:96]) + np.uint8(4) + (high << np.uint8(2))
    low, rest = _halves(blocks[..., 96:104]), blocks[..., 104:108]
    upper = np.concatenate([rest >> np.uint8(at) & 3 for at in range(0, 8, 2)], -1)
    scales = (low | upper << np.uint8(4)).astype(np.float32) - np.float32(32)
    return _packed(numbers, _half(blocks, 108)[..., None] * scales, 4, 16)


def _pairs_of_bits(octets: Blocks) -> NDArray[np.uint8]:
    """Numbers of two bits: of each 32 bytes the lowest bits first, then the next: [..., 32]."""
    places = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    return octets.reshape(*octets.shape[:-1], 2, 1, 32) >> places & np.uint8(3)


LEVELS = np.array(
    [-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.int8
)
"""What the codes of IQ4 types mean."""


def _iq4_nl(blocks: Blocks) -> Packed:
    return _packed(LEVELS[_halves(blocks[..., 2:])], _half(blocks, 0), 8, 32)


def _iq4_xs(blocks: Blocks) -> Packed:
    places = np.arange(0, 16, 2, dtype=np.uint16)
    high = np.ascontiguousarray(blocks[..., 2:4]).view(np.uint16) >> places & 3
    low = np.stack((blocks[..., 4:8] & 15, blocks[..., 4:8] >> 4), -1).reshape(high.shape)
    scales = (low | high << np.uint16(4)).astype(np.float32) - np.float32(32)
    numbers = LEVELS[_halves(blocks[..., 8:].reshape(*blocks.shape[:2], 8, 16))]
    return _packed(numbers, _half(blocks, 0)[..., None] * scales, 8, 32)


def _q1_0(blocks: Blocks) -> Packed:
    bits = np.unpackbits(np.ascontiguousarray(blocks[..., 2:]), axis=-1, bitorder="little")
    return _packed(np.uint8(7) + (bits << np.uint8(1)), _half(blocks, 0), 4, 128)


def _unpacked(name: str, group: int, *largest: int) -> Callable[[Blocks], Packed]:
    """Reads a type whose tables are those of the package ``gguf``: each group is an integer of 8
    bits times a scale, of which it may be that the largest is any of these.
    """

    def read(blocks: Blocks) -> Packed:
        try:
            from gguf import GGMLQuantizationType
            from gguf.quants import dequantize
        except ImportError as error:
            raise ModelLoadError(
                f"tensors of type {name} are unpacked by the package gguf: pip install gguf",
                param="model",
            ) from error
        flat = np.ascontiguousarray(blocks.reshape(len(blocks), -1))
        values = dequantize(flat, GGMLQuantizationType[name]).reshape(len(blocks), -1, group)
        top = np.abs(values).max(-1)
        top[top == 0] = 1
        scales, numbers = top.copy(), np.rint(values / top[..., None])
        left = np.ones(top.shape, np.bool_)
        for each in largest:
            scale = top / np.float32(each)
            found = values / scale[..., None]
            fits = left & (np.abs(found - np.rint(found)).max(-1) < 1e-3)
            scales[fits], numbers[fits] = scale[fits], np.rint(found)[fits]
            left &= ~fits
        return _packed(numbers.astype(np.int8), scales, 8, group)

    return read


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
    10: TensorType("Q2_K", 256, 84, _q2_k),
    11: TensorType("Q3_K", 256, 110, _q3_k),
    12: TensorType("Q4_K", 256, 144, _q4_k),
    13: TensorType("Q5_K", 256, 176, _q5_k),
    14: TensorType("Q6_K", 256, 210, _q6_k),
    16: TensorType("IQ2_XXS", 256, 66, _unpacked("IQ2_XXS", 32, 1, 8, 25, 43)),
    17: TensorType("IQ2_XS", 256, 74, _unpacked("IQ2_XS", 16, 1, 8, 25, 43)),
    18: TensorType("IQ3_XXS", 256, 98, _unpacked("IQ3_XXS", 32, 1, *range(4, 53, 8), 62)),
    19: TensorType("IQ1_S", 256, 50, _unpacked("IQ1_S", 32, 1, 7, 9)),
    20: TensorType("IQ4_NL", 32, 18, _iq4_nl),
    21: TensorType("IQ3_S", 256, 110, _unpacked("IQ3_S", 32, *range(1, 16, 2))),
    22: TensorType("IQ2_S", 256, 82, _unpacked("IQ2_S", 16, 1, 8, 25, 43)),
    23: TensorType("IQ4_XS", 256, 136, _iq4_xs),
    30: TensorType("BF16", 1, 2, _floats(ml_dtypes.bfloat16)),
    34: TensorType("TQ1_0", 256, 54, _unpacked("TQ1_0", 32, 1)),
    35: TensorType("TQ2_0", 256, 66, _unpacked("TQ2_0", 32, 1, 2)),
    39: TensorType("MXFP4", 32, 17, _mxfp4),
    41: TensorType("Q1_0", 128, 18, _q1_0),
}
"""By their numbers in files."""

_OTHERS = {29: "IQ1_M", 40: "NVFP4"}


def type_name(number: int) -> str:
    """The name of a type, supported or not."""
    return TYPES[number].name if number in TYPES else _OTHERS.get(number, str(number))

"""Integers of 4 and 8 bits that lie in words of 32."""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

assert sys.byteorder == "little", "words are read as their bytes"


def unpacked(words: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """The numbers in int32 [..., words], the lowest bits of a word first: [..., numbers]."""
    octets = np.ascontiguousarray(words).view(np.uint8)
    if bits == 8:
        return octets
    out = np.empty((*octets.shape[:-1], octets.shape[-1] * 2), np.uint8)
    out[..., 0::2] = octets & 15
    out[..., 1::2] = octets >> 4
    return out


def nibbles(numbers: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Numbers below 16, two in a byte: [..., 2 n] -> [..., n], the even ones in the low halves."""
    return numbers[..., 0::2] | numbers[..., 1::2] << np.uint8(4)


def packed_values(numbers: NDArray[np.uint8], bits: int) -> NDArray[np.uint8]:
    """Numbers [out, in] as :class:`pyengine.model.weights.matrix.Packed` has them."""
    return nibbles(numbers) if bits == 4 else np.ascontiguousarray(numbers)

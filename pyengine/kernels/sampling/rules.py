"""The rules of a sampling row as kernels read them: the words of a row, by the names of its fields.

The row is declared in ``kernels/cpu/src/sampler/sampling_row.rs``. A step's rows are one int32
tensor [rows, WORDS]; a field is a word of it, or two.
"""

from typing import Any

import torch

from pyengine._core import sampling_row
from pyengine.kernels.language import tl, triton

_ROW: dict[str, Any] = sampling_row()
_OFFSETS: dict[str, int] = dict(zip(_ROW["names"], _ROW["offsets"], strict=True))
FIELDS: tuple[str, ...] = tuple(_ROW["names"])
"""The names of the fields of a row."""
_FORMATS: dict[str, str] = dict(zip(_ROW["names"], _ROW["formats"], strict=True))


def word(name: str) -> Any:
    """The first word of a field, as a constant of the kernel file that applies the rule."""
    return tl.constexpr(_OFFSETS[name] // 4)


WORDS = tl.constexpr(_ROW["itemsize"] // 4)


@triton.jit
def integer(sampling_ptr, row, WORD: tl.constexpr):
    """An int32 of a row."""
    return tl.load(sampling_ptr + row * WORDS + WORD)


@triton.jit
def real(sampling_ptr, row, WORD: tl.constexpr):
    """A float32 of a row."""
    return tl.load(sampling_ptr + row * WORDS + WORD).to(tl.float32, bitcast=True)


@triton.jit
def long(sampling_ptr, row, WORD: tl.constexpr):
    """The int64 with the bits of two words of a row."""
    low = tl.load(sampling_ptr + row * WORDS + WORD).to(tl.int64) & 0xFFFFFFFF
    high = tl.load(sampling_ptr + row * WORDS + WORD + 1).to(tl.int64)
    return (high << 32) | low


def rule(sampling: torch.Tensor, name: str) -> torch.Tensor:
    """A view of a field of all rows: [rows], int64 with the bits of uint64.

    Args:
        sampling: int32 [rows, WORDS].
        name: The field's, as in :class:`pyengine.SamplingParams`.
    """
    kind = _FORMATS[name]
    dtype = torch.int64 if kind == "uint64" else getattr(torch, kind)
    return sampling.view(dtype)[:, _OFFSETS[name] // dtype.itemsize]

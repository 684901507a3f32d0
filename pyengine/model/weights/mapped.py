"""A safetensors file, mapped into memory: tensors are views, and those not read cost nothing.

The format is a header's length (8 bytes, little endian), the header (JSON: each tensor's type,
shape, and place behind the header), and the tensors' bytes (https://github.com/huggingface/
safetensors). The safetensors package copies every tensor it gives to numpy, and knows no 8-bit
floats there.
"""

import json
import math
import mmap
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from pyengine.errors import ModelLoadError

DTYPES: dict[str, Any] = {
    "F64": np.float64,
    "F32": np.float32,
    "F16": np.float16,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
    "I64": np.int64,
    "I32": np.int32,
    "I16": np.int16,
    "I8": np.int8,
    "U8": np.uint8,
    "BOOL": np.bool_,
}

MAX_HEADER_BYTES = 100 << 20
"""As the format's own reader allows."""


def mapped(path: Path) -> mmap.mmap:
    """The bytes of a file; written to, they would be a copy. Closed with its last view.

    Raises:
        ModelLoadError: It cannot be read, or is empty.
    """
    try:
        with path.open("rb") as file:
            return mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    except (OSError, ValueError) as error:
        raise ModelLoadError(f"cannot read the weights in {path}: {error}") from error


def safetensors(path: Path) -> dict[str, NDArray[Any]]:
    """The tensors of a safetensors file, by name.

    Raises:
        ModelLoadError: The file cannot be read, is damaged or cut short, or holds a tensor of an
            unknown type.
    """
    memory = mapped(path)
    try:
        length = int.from_bytes(memory[:8], "little")
        if not 2 <= length <= min(MAX_HEADER_BYTES, len(memory) - 8):
            raise ValueError(f"the header's length is {length}, the file's {len(memory)}")
        header: dict[str, Any] = json.loads(memory[8 : 8 + length])
        header.pop("__metadata__", None)
        return {name: _tensor(memory, 8 + length, name, **entry) for name, entry in header.items()}
    except (ValueError, TypeError, AttributeError, KeyError, RecursionError) as error:
        raise ModelLoadError(f"cannot read the weights in {path}: {error}") from error


def _tensor(
    memory: mmap.mmap, start: int, name: str, dtype: str, shape: list[int], data_offsets: list[int]
) -> NDArray[Any]:
    if dtype not in DTYPES:
        raise ValueError(f"{name!r} is of the unknown type {dtype}")
    kind, (begin, end) = np.dtype(DTYPES[dtype]), data_offsets
    count = math.prod(shape)
    if not 0 <= begin <= end <= len(memory) - start or end - begin != count * kind.itemsize:
        raise ValueError(f"{name!r} does not lie within the file")
    tensor = np.frombuffer(memory, kind, count, start + begin).reshape(shape)
    return tensor if tensor.flags.aligned else tensor.copy()

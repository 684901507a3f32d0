from collections.abc import Iterator
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
import torch

# torch's builds without CUDA come without triton.
collect_ignore_glob = [] if find_spec("triton") else ["test_*.py"]


@pytest.fixture(autouse=True)
def kernels_overflow_in_silence() -> Iterator[None]:
    """As a GPU does; Triton's interpreter computes with numpy, which would warn."""
    with np.errstate(all="ignore"):
        yield


@pytest.fixture(autouse=True)
def kernels_round_to_nearest(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does; Triton's interpreter cuts bfloat16 off, and carries wrongly in float8."""
    import triton.language as tl
    from triton.runtime import interpreter

    narrow = {
        tl.bfloat16: (torch.bfloat16, torch.int16, np.uint16),
        tl.float8e4nv: (torch.float8_e4m3fn, torch.uint8, np.uint8),
    }
    theirs = interpreter._convert_float

    def convert(data: Any, source: Any, target: Any, mode: Any) -> Any:
        if source != tl.float32 or target not in narrow:
            return theirs(data, source, target, mode)
        dtype, bits, unsigned = narrow[target]
        exact = torch.from_numpy(np.array(data, np.float32))
        return exact.to(dtype).view(bits).numpy().view(unsigned).reshape(np.shape(data))

    monkeypatch.setattr(interpreter, "_convert_float", convert)


@pytest.fixture(autouse=True)
def kernels_multiply_bfloat16(monkeypatch: pytest.MonkeyPatch) -> None:
    """As a GPU does; Triton's interpreter multiplies the bits as integers."""
    import triton.language as tl
    from triton.runtime import interpreter

    theirs = interpreter.InterpreterBuilder.create_dot

    def widened(handle: Any) -> Any:
        if handle.dtype.scalar != tl.bfloat16:
            return handle
        bits = np.ascontiguousarray(handle.data)
        numbers = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
        return interpreter.TensorHandle(numbers, tl.float32)

    def dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return theirs(self, widened(a), widened(b), *more)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)

"""Triton where it is installed; without it kernels are defined all the same, and none is launched.

torch's builds without CUDA come without triton. Kernels lie beside their references, which are to
run there too.
"""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any


class _Absent:
    """The part of triton that the definition of a kernel needs."""

    @staticmethod
    def constexpr(value: Any) -> Any:
        return value

    @staticmethod
    def jit(function: Callable[..., Any] | None = None, **_: Any) -> Any:
        return _Absent.jit if function is None else _Absent()

    @staticmethod
    def next_power_of_2(number: int) -> int:
        return 1 << max(0, number - 1).bit_length()

    @staticmethod
    def cdiv(number: int, by: int) -> int:
        return -(-number // by)

    def __getitem__(self, _: Any) -> Any:
        raise RuntimeError(
            "this kernel needs triton, which comes with torch's CUDA builds; on the CPU its "
            "reference does the same"
        )


def _module(name: str) -> Any:
    return importlib.import_module(name) if find_spec("triton") else _Absent()


triton: Any = _module("triton")
tl: Any = _module("triton.language")
